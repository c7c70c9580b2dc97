#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace coreai::testing {

/// (input - mean) / sqrt(variance + eps) * scale + bias per row, in double; empty is none.
inline std::vector<double> LayerNormReference(const std::vector<double>& input,
                                              const std::vector<double>& scale,
                                              const std::vector<double>& bias, std::size_t row_size,
                                              double eps) {
  std::vector<double> output(input.size());
  const auto n = static_cast<double>(row_size);
  for (std::size_t row = 0; row * row_size < input.size(); ++row) {
    const double* x = input.data() + row * row_size;
    double sum = 0, squares = 0;
    for (std::size_t i = 0; i < row_size; ++i) sum += x[i];
    const double mean = sum / n;
    for (std::size_t i = 0; i < row_size; ++i) squares += (x[i] - mean) * (x[i] - mean);
    const double root = std::sqrt(squares / n + eps);
    for (std::size_t i = 0; i < row_size; ++i) {
      output[row * row_size + i] =
          (x[i] - mean) / root * (scale.empty() ? 1.0 : scale[i]) + (bias.empty() ? 0.0 : bias[i]);
    }
  }
  return output;
}

}  // namespace coreai::testing
