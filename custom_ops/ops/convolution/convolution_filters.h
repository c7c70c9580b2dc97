#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/convolution/convolution.h"
#include "kernels/gather_mm/gather_mm.h"
#include "ops/item_pool.h"

namespace coreai {

/// A multiple of the panel width of every target.
inline constexpr std::size_t kColumnStep = 48;
/// Bytes of the filters that are multiplied by all windows of an item, which stay there too.
inline constexpr std::size_t kFilterBytes = 384 * 1024;
/// Below this number of filters, they would leave most lanes of a vector empty. 8 filters of 7 x 7
/// with a stride of 2 took 4.2 ms as rows of products, whose windows are gathered (AVX-512,
/// 2026-11).
inline constexpr std::size_t kFewFilters = 8;
/// A part has at least this number of windows in a row, so that it multiplies as fast as any.
inline constexpr std::size_t kLeastWindows = 32;
/// Bounds for the padded parts of planes: 3 MB.
inline constexpr std::size_t kPlaneStride = 4, kPlaneReach = 64;

inline std::size_t Ceil(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

/// A convolution of given shapes.
struct ConvolutionProblem {
  ConvolutionSizes sizes;
  std::size_t images, channels, filters;  // of a group
  std::size_t groups;

  /// Elements of a window, with the one behind it if it is a column.
  std::size_t depth() const { return sizes.window_size() * channels + (of_filters() ? 0 : 1); }
  std::size_t plane() const { return sizes.height * sizes.width; }
  /// Whether windows are the elements of a plane.
  bool of_points() const {
    return sizes.window_size() == 1 && sizes.stride_x * sizes.stride_y == 1 &&
           sizes.windows() == plane() && sizes.top + sizes.left == 0;
  }
  bool of_planes() const {
    const bool near = (sizes.window_height - 1) * sizes.dilation_y <= kPlaneReach &&
                      (sizes.window_width - 1) * sizes.dilation_x <= kPlaneReach;
    return channels == 1 && !of_filters() && near &&
           std::max(sizes.stride_y, sizes.stride_x) <= kPlaneStride;
  }
  /// Whether filters are the lanes of vectors. A sum is then in another order, so that this must
  /// not depend on the numbers of images and windows.
  bool of_filters() const { return filters >= kFewFilters; }
};

/// Windows that one call multiplies by filters: rows of them, or parts of a row.
class ConvolutionParts {
 public:
  ConvolutionParts(const ConvolutionProblem& p, std::size_t most_bytes, std::size_t most_windows,
                   DType dtype);

  std::size_t count() const { return Ceil(sizes_.out_height, rows_) * across(); }
  std::size_t First(std::size_t part) const {
    return part / across() * rows_ * sizes_.out_width + part % across() * columns_;
  }
  std::size_t Count(std::size_t part) const {
    return std::min(sizes_.out_height - part / across() * rows_, rows_) *
           std::min(sizes_.out_width - part % across() * columns_, columns_);
  }
  /// Bytes of the scratch memory of a call.
  std::size_t scratch_bytes() const { return scratch_bytes_; }

 private:
  std::size_t across() const { return Ceil(sizes_.out_width, columns_); }

  const ConvolutionSizes& sizes_;
  std::size_t rows_, columns_, scratch_bytes_ = 0;
};

/// Few filters that one call of a product multiplies: equal parts of a group.
struct FilterBlocks {
  std::size_t count, size;

  FilterBlocks(std::size_t filters, std::size_t filter_bytes) {
    const std::size_t most =
        std::min(std::max<std::size_t>(kFilterBytes / filter_bytes, 32), kGatherMmMaxRows);
    size = Ceil(Ceil(filters, Ceil(filters, most)), 8) * 8;
    count = Ceil(filters, size);
  }
};

/// The filters of all groups: a packed matrix for each group, or packed rows of products with their
/// biases. `bias` may be null.
ScratchMemory PackFilters(const ConvolutionProblem& p, const void* weight, const void* bias,
                          DType dtype, Target target);

}  // namespace coreai
