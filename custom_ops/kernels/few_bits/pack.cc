#include "kernels/few_bits/pack.h"

#include "kernels/few_bits/few_bits.h"

namespace coreai {
namespace {

constexpr std::size_t kMostWords = 5;  // of a unit of 5-bit codes

// The first four half bytes of a word as four bytes.
std::uint32_t Spread(std::uint32_t halves) {
  halves = (halves | halves << 8) & 0x00FF00FFu;
  return (halves | halves << 4) & 0x0F0F0F0Fu;
}

// The word of codes [first, first + unit) of a group, zeros after its end.
std::uint32_t WordOf(const std::uint8_t* stream, std::size_t first, std::size_t group,
                     std::size_t bits) {
  const std::size_t stored = StoredBits(bits, group);
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

// A unit of several words.
void WordsOf(const std::uint8_t* stream, std::size_t first, std::size_t bits,
             std::uint32_t* words) {
  const std::size_t quads = UnitCodes(bits) / 4, above = quads / 2;
  for (std::size_t i = 0; i < quads; ++i) {
    const std::uint32_t quad = WordOfBytes(stream, first + 4 * i, bits);
    words[i / 2] |= (quad & 0x0F0F0F0Fu) << i % 2 * 4;
    words[above] |= (quad >> 4 & 0x0F0F0F0Fu) << i * (bits - 4);
  }
}

// A unit of any place and size, into words that are zero.
void UnitAt(const std::uint8_t* stream, std::size_t first, std::size_t group, std::size_t bits,
            std::uint32_t* words) {
  const std::size_t stored = StoredBits(bits, group);
  if (stored == 5 || stored == 6) return WordsOf(stream, first, bits, words);
  const bool whole = first + UnitCodes(stored) <= group;
  *words = whole && bits == 4  ? WordOf4(stream, first)
           : whole && bits > 4 ? WordOfBytes(stream, first, bits)
                               : WordOf(stream, first, group, bits);
}

}  // namespace

void PackCodes(const std::uint8_t* codes, std::size_t columns, std::size_t groups,
               std::size_t group, std::size_t bits, std::size_t padded, std::uint8_t* packed) {
  const std::size_t stored = StoredBits(bits, group), unit = UnitCodes(stored);
  const std::size_t words_of_group = padded * stored / 32, words_of_unit = unit * stored / 32;
  for (std::size_t strip = 0; strip < columns; strip += kFewBitsStrip) {
    for (std::size_t c = strip; c < strip + kFewBitsStrip; ++c) {
      std::uint8_t* to = packed + (strip * groups * words_of_group + (c - strip)) * 4;
      for (std::size_t g = 0; g < groups; ++g) {
        const std::uint8_t* const stream = codes + (c * groups + g) * (group * bits / 8);
        for (std::size_t k = 0; k < padded; k += unit) {
          std::uint32_t words[kMostWords] = {};
          if (c < columns) UnitAt(stream, k, group, bits, words);
          for (std::size_t i = 0; i < words_of_unit; ++i, to += kFewBitsStrip * 4) {
            // Byte by byte, so that the order does not depend on the processor.
            for (std::size_t j = 0; j < 4; ++j) {
              to[j] = static_cast<std::uint8_t>(words[i] >> 8 * j);
            }
          }
        }
      }
    }
  }
}

}  // namespace coreai
