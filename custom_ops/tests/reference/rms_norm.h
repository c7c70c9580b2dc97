#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace coreai::testing {

/// input / sqrt(mean(input^2) + eps) * scale per row, in double; an empty scale is none.
inline std::vector<double> RmsNormReference(const std::vector<double>& input,
                                            const std::vector<double>& scale, std::size_t row_size,
                                            double eps) {
  std::vector<double> output(input.size());
  for (std::size_t row = 0; row * row_size < input.size(); ++row) {
    const double* x = input.data() + row * row_size;
    double sum = 0;
    for (std::size_t i = 0; i < row_size; ++i) sum += x[i] * x[i];
    const double root = std::sqrt(sum / static_cast<double>(row_size) + eps);
    for (std::size_t i = 0; i < row_size; ++i) {
      output[row * row_size + i] = x[i] / root * (scale.empty() ? 1.0 : scale[i]);
    }
  }
  return output;
}

}  // namespace coreai::testing
