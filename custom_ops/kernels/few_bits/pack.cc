#include "kernels/few_bits/pack.h"

#include <cstring>

#include "kernels/few_bits/few_bits.h"

namespace coreai {
namespace {

// The first four half bytes of a word as four bytes.
std::uint32_t Spread(std::uint32_t halves) {
  halves = (halves | halves << 8) & 0x00FF00FFu;
  return (halves | halves << 4) & 0x0F0F0F0Fu;
}

// The word of codes [first, first + unit) of a group, zeros after its end.
std::uint32_t WordOf(const std::uint8_t* stream, std::size_t first, std::size_t group,
                     std::size_t bits) {
  const std::size_t stored = StoredBits(bits);
  std::uint32_t word = 0;
  for (std::size_t j = 0; j < 32 / stored && first + j < group; ++j) {
    word |= CodeAt(stream, first + j, bits) << (j % 4 * 8 + j / 4 * stored);
  }
  return word;
}

// The same for a whole unit of 4-bit codes.
std::uint32_t WordOf4(const std::uint8_t* stream, std::size_t first) {
  const std::uint8_t* const p = stream + first / 2;
  return Spread(static_cast<std::uint32_t>(p[0] | p[1] << 8)) |
         Spread(static_cast<std::uint32_t>(p[2] | p[3] << 8)) << 4;
}

// The same for four codes of 8, 6 or 5 bits, which end within the third byte unless they have 8.
std::uint32_t WordOfBytes(const std::uint8_t* stream, std::size_t first, std::size_t bits) {
  const std::uint8_t* const p = stream + first * bits / 8;
  std::uint32_t all =
      p[0] | static_cast<std::uint32_t>(p[1]) << 8 | static_cast<std::uint32_t>(p[2]) << 16;
  if (bits == 8) return all | static_cast<std::uint32_t>(p[3]) << 24;
  all >>= first * bits % 8;
  std::uint32_t word = 0;
  for (std::size_t j = 0; j < 4; ++j) word |= (all >> j * bits & ((1u << bits) - 1)) << 8 * j;
  return word;
}

// The same for any place and size.
std::uint32_t UnitAt(const std::uint8_t* stream, std::size_t first, std::size_t group,
                     std::size_t bits) {
  const bool whole = first + 32 / StoredBits(bits) <= group;
  if (whole && bits == 4) return WordOf4(stream, first);
  if (whole && bits > 4) return WordOfBytes(stream, first, bits);
  return WordOf(stream, first, group, bits);
}

}  // namespace

void PackCodes(const std::uint8_t* codes, std::size_t columns, std::size_t groups,
               std::size_t group, std::size_t bits, std::size_t padded, std::uint8_t* packed) {
  const std::size_t unit = 32 / StoredBits(bits);
  const std::size_t units = padded / unit;
  for (std::size_t strip = 0; strip < columns; strip += kFewBitsStrip) {
    for (std::size_t c = strip; c < strip + kFewBitsStrip; ++c) {
      std::uint8_t* to = packed + (strip * groups * units + (c - strip)) * 4;
      for (std::size_t g = 0; g < groups; ++g) {
        const std::uint8_t* const stream = codes + (c * groups + g) * (group * bits / 8);
        for (std::size_t k = 0; k < padded; k += unit, to += kFewBitsStrip * 4) {
          const std::uint32_t word = c < columns ? UnitAt(stream, k, group, bits) : 0;
          // Byte by byte, so that the order does not depend on the processor.
          for (std::size_t j = 0; j < 4; ++j) to[j] = static_cast<std::uint8_t>(word >> 8 * j);
        }
      }
    }
  }
}

}  // namespace coreai
