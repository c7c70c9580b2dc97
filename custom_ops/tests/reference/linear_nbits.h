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
  std::vector<std::uint8_t> stream;  ///< [columns, groups, group * bits / 8]
  std::vector<double> scales;        ///< [columns, groups]
  std::vector<double> zeros;         ///< the same, or empty
  std::vector<double> palette;       ///< [2 ** bits], or empty

  unsigned Code(std::size_t column, std::size_t k) const {
    const std::size_t first = (column * groups + k / group) * group * bits + k % group * bits;
    unsigned code = 0;
    for (std::size_t i = 0; i < bits; ++i) {
      code |= (stream[(first + i) / 8] >> ((first + i) % 8) & 1u) << i;
    }
    return code;
  }

  double Value(std::size_t column, std::size_t k) const {
    const std::size_t at = column * groups + k / group;
    const unsigned code = Code(column, k);
    if (!palette.empty()) return palette[code] * scales[at];
    return (code - (zeros.empty() ? std::ldexp(1.0, static_cast<int>(bits) - 1) : zeros[at])) *
           scales[at];
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
