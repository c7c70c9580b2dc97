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

/// Bytes of the sums of a window, of a panel of filters on any target.
inline constexpr std::size_t kPanelBytes = 256;

/// Planes a multiple of so many bytes apart have their elements in few sets of a cache.
inline constexpr std::size_t kSets = 1024;

/// More bytes of planes are copied in parts, which stay in the second-level cache.
inline constexpr std::size_t kInPlaceBytes = 1024 * 1024;

/// The part of padded planes that consecutive windows cover: the whole width, if they are of
/// several rows.
struct ConvolutionCover {
  std::size_t top, left, rows, columns;
  std::size_t copied;      ///< elements of a plane's copy
  std::size_t row, plane;  ///< elements from one row and plane to the next
  bool in_place;           ///< whether they are those of the input

  ConvolutionCover(const ConvolutionSizes& s, std::size_t channels, std::size_t first,
                   std::size_t count, std::size_t size) {
    const std::size_t begin = first / s.out_width, last = (first + count - 1) / s.out_width;
    const bool one = begin == last;
    top = begin * s.stride_y;
    left = one ? first % s.out_width * s.stride_x : 0;
    rows = (last - begin) * s.stride_y + (s.window_height - 1) * s.dilation_y + 1;
    columns =
        ((one ? count : s.out_width) - 1) * s.stride_x + (s.window_width - 1) * s.dilation_x + 1;
    in_place = top >= s.top && left >= s.left && top + rows <= s.top + s.height &&
               left + columns <= s.left + s.width && s.height * s.width * size % kSets != 0 &&
               channels * s.height * s.width * size <= kInPlaceBytes;
    // Odd numbers of cache lines.
    copied = ((rows * columns * size + 63) / 64 | 1) * 64 / size;
    row = in_place ? s.width : columns;
    plane = in_place ? s.height * s.width : copied;
  }
};

}  // namespace coreai
