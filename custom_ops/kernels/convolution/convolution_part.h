#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/convolution/convolution.h"

namespace coreai {

/// The windows of a part of a plane, which is copied with its padding to the nearest caches.
inline constexpr std::size_t kPartRows = 32;
inline constexpr std::size_t kPartColumns = 256;
/// Most lanes of a vector, of which the last one of a row may have some behind its windows.
inline constexpr std::size_t kPartLanes = 16;

/// Sizes of the copy, with what vectors and blocks of rows read behind the last window.
struct ConvolutionPart {
  std::size_t rows, columns, pitch;

  explicit ConvolutionPart(const ConvolutionSizes& s) {
    const std::size_t few = std::min(kPartRows, s.out_height);
    const std::size_t high = few < 4 ? few : (few + 7) / 8 * 8;
    const std::size_t wide = std::min(kPartColumns, s.out_width) + kPartLanes;
    rows = (high - 1) * s.stride_y + (s.window_height - 1) * s.dilation_y + 1;
    columns = (wide - 1) * s.stride_x + (s.window_width - 1) * s.dilation_x + 1;
    pitch = columns;
  }
};

}  // namespace coreai
