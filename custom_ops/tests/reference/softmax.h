#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace coreai::testing {

/// exp(input) / sum(exp(input)) per row, in double; NaN where a row has NaN, or -inf only.
inline std::vector<double> SoftmaxReference(const std::vector<double>& input,
                                            std::size_t row_size) {
  std::vector<double> output(input.size());
  for (std::size_t row = 0; row * row_size < input.size(); ++row) {
    const double* x = input.data() + row * row_size;
    const double largest = *std::max_element(x, x + row_size);
    double sum = 0;
    for (std::size_t i = 0; i < row_size; ++i) sum += std::exp(x[i] - largest);
    for (std::size_t i = 0; i < row_size; ++i) {
      output[row * row_size + i] = std::exp(x[i] - largest) / sum;
    }
  }
  return output;
}

}  // namespace coreai::testing
