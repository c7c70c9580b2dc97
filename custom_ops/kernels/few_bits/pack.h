#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/few_bits/few_bits.h"

namespace coreai {

/// Size of a code in packed memory: 3-bit codes take 4 bits, 5-bit and 6-bit codes 8 unless their
/// units, which are large, fill a group.
constexpr std::size_t StoredBits(std::size_t bits, std::size_t group) {
  if (bits == 3) return 4;
  return bits > 4 && group % UnitCodes(bits) != 0 ? 8 : bits;
}

/// Up to 9 bits of a little-endian stream, from `bit` on.
inline unsigned BitsAt(const std::uint8_t* stream, std::size_t bit, std::size_t bits) {
  unsigned word = stream[bit / 8];
  if (bit % 8 + bits > 8) word |= static_cast<unsigned>(stream[bit / 8 + 1]) << 8;
  return word >> (bit % 8) & ((1u << bits) - 1);
}

/// Code `index` of a little-endian stream of codes of 8, 6, 5, 4, 3 or 2 bits.
inline unsigned CodeAt(const std::uint8_t* stream, std::size_t index, std::size_t bits) {
  return BitsAt(stream, index * bits, bits);
}

/// Packs streams of codes, [columns, groups, group * bits / 8], as FewBitsWeight describes. The
/// memory has ceil(columns / 64) strips, zeros where there is no code.
void PackCodes(const std::uint8_t* codes, std::size_t columns, std::size_t groups,
               std::size_t group, std::size_t bits, std::size_t padded, std::uint8_t* packed);

}  // namespace coreai
