#pragma once

#include <cstddef>
#include <vector>

namespace coreai::testing {

/// [rows, depth] times [depth, columns], or times the transpose of [columns, depth], in double.
inline std::vector<double> GatherMmReference(const std::vector<double>& left,
                                             const std::vector<double>& right, std::size_t rows,
                                             std::size_t depth, std::size_t columns,
                                             bool transposed) {
  std::vector<double> output(rows * columns, 0.0);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      for (std::size_t k = 0; k < depth; ++k) {
        const double factor = transposed ? right[c * depth + k] : right[k * columns + c];
        output[r * columns + c] += left[r * depth + k] * factor;
      }
    }
  }
  return output;
}

}  // namespace coreai::testing
