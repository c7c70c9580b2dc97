#pragma once

#include <cstddef>
#include <vector>

namespace coreai::testing {

/// Rows [rows, head_dim] rotated by tables [rows, half], or [1, half] for all rows, in double.
inline std::vector<double> RopeReference(const std::vector<double>& input,
                                         const std::vector<double>& cos,
                                         const std::vector<double>& sin, std::size_t head_dim,
                                         std::size_t half, bool interleaved) {
  std::vector<double> output = input;
  for (std::size_t row = 0; row * head_dim < input.size(); ++row) {
    for (std::size_t i = 0; i < half; ++i) {
      const std::size_t first = row * head_dim + (interleaved ? 2 * i : i);
      const std::size_t second = first + (interleaved ? 1 : half);
      const double c = cos[(row * half + i) % cos.size()];
      const double s = sin[(row * half + i) % sin.size()];
      output[first] = c * input[first] - s * input[second];
      output[second] = s * input[first] + c * input[second];
    }
  }
  return output;
}

}  // namespace coreai::testing
