#pragma once

#include <cstddef>
#include <vector>

#include "kernels/convolution/convolution.h"

namespace coreai::testing {

/// The convolution of one image [groups * channels, height, width] with filters
/// [groups * filters, channels, window_height, window_width], in double; an empty bias is none.
inline std::vector<double> ConvolutionReference(const ConvolutionSizes& s,
                                                const std::vector<double>& image,
                                                const std::vector<double>& weight,
                                                const std::vector<double>& bias, std::size_t groups,
                                                std::size_t channels, std::size_t filters) {
  std::vector<double> output;
  for (std::size_t filter = 0; filter < groups * filters; ++filter) {
    for (std::size_t window = 0; window < s.windows(); ++window) {
      double sum = bias.empty() ? 0 : bias[filter];
      for (std::size_t i = 0; i < channels * s.window_size(); ++i) {
        const std::size_t place = i % s.window_size(), c = i / s.window_size();
        // Counted from the padding.
        const std::size_t y = window / s.out_width * s.stride_y +
                              place / s.window_width * s.dilation_y,
                          x = window % s.out_width * s.stride_x +
                              place % s.window_width * s.dilation_x;
        if (y < s.top || x < s.left || y - s.top >= s.height || x - s.left >= s.width) continue;
        const std::size_t plane = filter / filters * channels + c;
        sum += weight[filter * channels * s.window_size() + i] *
               image[(plane * s.height + y - s.top) * s.width + x - s.left];
      }
      output.push_back(sum);
    }
  }
  return output;
}

}  // namespace coreai::testing
