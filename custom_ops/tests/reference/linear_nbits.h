#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace coreai::testing {

/// A weight of few bits as the composite has it.
struct FewBits {
  std::size_t bits = 4, group = 1, columns = 0, groups = 0;
  std::vector<std::uint8_t> stream;        ///< [columns, groups, group * bits / 8]
  std::vector<double> scales;              ///< [columns, groups], or [columns, blocks]
  std::vector<double> zeros;               ///< [columns, groups], or empty
  std::vector<double> palette;             ///< [2 ** bits], or empty
  std::vector<double> minimums;            ///< as scales, or empty
  std::size_t scale_bits = 0;              ///< 0 for scales of one level
  std::size_t blocks = 0;                  ///< of groups in a row, with scales of two levels
  std::vector<std::uint8_t> scale_stream;  ///< [columns, blocks, bytes]: codes of scales, then of
                                           ///< minimums
  std::vector<std::uint8_t> table;  ///< [rows, width], or empty; with it the stream has blocks of
                                    ///< 256 values and `scales` is [columns, blocks]
  std::vector<double> layout;       ///< [numbers, 1 + 3 * fields]
  std::size_t width = 0, fields = 0, block_bytes = 0;

  /// Code `index` of `size` bits.
  static unsigned CodeIn(const std::vector<std::uint8_t>& bytes, std::size_t index,
                         std::size_t size) {
    unsigned code = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t bit = index * size + i;
      code |= (bytes[bit / 8] >> (bit % 8) & 1u) << i;
    }
    return code;
  }

  /// Number `index` of the block that has value k of a column.
  double Number(std::size_t column, std::size_t k, std::size_t index) const {
    const std::size_t block = column * (groups * group / 256) + k / 256;
    const double* const of = layout.data() + index * (1 + 3 * fields);
    double number = of[0];
    for (std::size_t f = 1; f < 1 + 3 * fields; f += 3) {
      for (std::size_t i = 0; i < static_cast<std::size_t>(of[f + 1]); ++i) {
        const std::size_t bit = block * block_bytes * 8 + static_cast<std::size_t>(of[f]) + i;
        number += std::ldexp(stream[bit / 8] >> (bit % 8) & 1u, static_cast<int>(i)) * of[f + 2];
      }
    }
    return number;
  }

  double ValueOfBlock(std::size_t column, std::size_t k) const {
    const std::size_t of_block = 256 / group, index = of_block + k % 256 / width;
    unsigned code = 0;
    for (const std::size_t at : {index, index + 256 / width}) {
      code |= table[static_cast<std::size_t>(Number(column, k, at)) * width + k % width];
    }
    return palette[code] * Number(column, k, k / group % of_block) *
           scales[column * (groups / of_block) + k / 256];
  }

  double Scale(std::size_t column, std::size_t g) const {
    if (scale_bits == 0) return scales[column * groups + g];
    const double code = CodeIn(scale_stream, ScaleIndex(column, g), scale_bits);
    const double middle =
        minimums.empty() ? std::ldexp(1.0, static_cast<int>(scale_bits) - 1) : 0.0;
    return (code - middle) * scales[Block(column, g)];
  }

  double Minimum(std::size_t column, std::size_t g) const {
    if (minimums.empty()) return 0;
    if (scale_bits == 0) return minimums[column * groups + g];
    const std::size_t index = ScaleIndex(column, g) + groups / blocks;
    return CodeIn(scale_stream, index, scale_bits) * minimums[Block(column, g)];
  }

  double Value(std::size_t column, std::size_t k) const {
    if (!table.empty()) return ValueOfBlock(column, k);
    const std::size_t at = column * groups + k / group;
    const unsigned code = CodeIn(stream, at * group + k % group, bits);
    const double scale = Scale(column, k / group);
    if (!palette.empty()) return palette[code] * scale;
    if (!minimums.empty()) return code * scale - Minimum(column, k / group);
    return (code - (zeros.empty() ? std::ldexp(1.0, static_cast<int>(bits) - 1) : zeros[at])) *
           scale;
  }

 private:
  std::size_t Block(std::size_t column, std::size_t g) const {
    return column * blocks + g / (groups / blocks);
  }

  // The place of the code of a scale among all codes of scales and minimums.
  std::size_t ScaleIndex(std::size_t column, std::size_t g) const {
    const std::size_t size = groups / blocks, count = minimums.empty() ? size : 2 * size;
    return Block(column, g) * count + g % size;
  }
};

/// A group of activations rounded to 8 bits, with quotients in W, as the kernels have them: in
/// another precision a tie may be rounded to the other side.
template <typename W>
void RoundReference(double* x, std::size_t count) {
  double largest = 1e-30;
  for (std::size_t i = 0; i < count; ++i) {
    largest = std::isnan(x[i]) ? x[i] : std::max(largest, std::fabs(x[i]));
    if (std::isnan(largest)) break;
  }
  const W inverse = 127 / static_cast<W>(largest);
  for (std::size_t i = 0; i < count; ++i) {
    const W quotient = static_cast<W>(x[i]) * inverse;
    x[i] = static_cast<double>(std::nearbyint(quotient)) * (largest / 127);
  }
}

/// [rows, depth] times the transposed weight, in double. W is the type in which the kernel rounds.
template <typename W = float>
std::vector<double> LinearNbitsReference(std::vector<double> x, std::size_t rows,
                                         const FewBits& weight, bool rounds) {
  const std::size_t depth = weight.groups * weight.group;
  for (std::size_t i = 0; rounds && i < rows * weight.groups; ++i) {
    RoundReference<W>(x.data() + i * weight.group, weight.group);
  }
  std::vector<double> output(rows * weight.columns, 0.0);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < weight.columns; ++c) {
      for (std::size_t k = 0; k < depth; ++k) {
        output[r * weight.columns + c] += x[r * depth + k] * weight.Value(c, k);
      }
    }
  }
  return output;
}

}  // namespace coreai::testing
