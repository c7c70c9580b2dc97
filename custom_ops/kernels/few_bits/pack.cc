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
          std::uint32_t word = 0;
          if (c < columns) {
            const bool whole = bits == 4 && k + unit <= group;
            word = whole ? WordOf4(stream, k) : WordOf(stream, k, group, bits);
          }
          // Byte by byte, so that the order does not depend on the processor.
          for (std::size_t j = 0; j < 4; ++j) to[j] = static_cast<std::uint8_t>(word >> 8 * j);
        }
      }
    }
  }
}

}  // namespace coreai
