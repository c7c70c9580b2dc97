#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/convolution/convolution.h"

namespace coreai {

/// The windows of a part of planes, which are copied with their padding to the nearest caches.
inline constexpr std::size_t kPartRows = 16;
inline constexpr std::size_t kPartColumns = 64;
/// Bytes of an element of as many planes as a vector has lanes.
inline constexpr std::size_t kPartLaneBytes = 64;

/// Sizes of the copy, with the columns of windows that are computed behind the last one.
struct ConvolutionPart {
  std::size_t rows, columns;

  explicit ConvolutionPart(const ConvolutionSizes& s) {
    const std::size_t high = std::min(kPartRows, s.out_height);
    const std::size_t wide = (std::min(kPartColumns, s.out_width) + 15) / 8 * 8;
    rows = (high - 1) * s.stride_y + (s.window_height - 1) * s.dilation_y + 1;
    columns = (wide - 1) * s.stride_x + (s.window_width - 1) * s.dilation_x + 1;
  }
};

}  // namespace coreai
