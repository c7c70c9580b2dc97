#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace coreai::testing {

/// (input - mean) / sqrt(variance + eps) * scale + bias of one group [channels, places], in double;
/// an empty scale or bias is none.
inline std::vector<double> GroupNormReference(const std::vector<double>& input,
                                              const std::vector<double>& scale,
                                              const std::vector<double>& bias, std::size_t channels,
                                              double eps) {
  const auto n = static_cast<double>(input.size());
  const std::size_t places = input.size() / channels;
  double mean = 0, variance = 0;
  for (const double x : input) mean += x / n;
  for (const double x : input) variance += (x - mean) * (x - mean) / n;
  std::vector<double> output;
  for (std::size_t i = 0; i < input.size(); ++i) {
    const std::size_t channel = i / places;
    output.push_back((input[i] - mean) / std::sqrt(variance + eps) *
                         (scale.empty() ? 1.0 : scale[channel]) +
                     (bias.empty() ? 0.0 : bias[channel]));
  }
  return output;
}

}  // namespace coreai::testing
