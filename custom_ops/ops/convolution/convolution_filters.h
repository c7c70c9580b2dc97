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
/// Below this number windows are the rows of products, if they fill fewer columns than filters do.
inline constexpr std::size_t kFewWindows = 96;
/// Bounds for the padded parts of planes: 3 MB.
inline constexpr std::size_t kPlaneStride = 4, kPlaneReach = 64;

inline std::size_t Ceil(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

/// A convolution of given shapes.
struct ConvolutionProblem {
  ConvolutionSizes sizes;
  std::size_t images, channels, filters;  // of a group
  std::size_t groups;

  std::size_t depth() const { return sizes.window_size() * channels + 1; }
  std::size_t plane() const { return sizes.height * sizes.width; }
  bool of_planes() const {
    const bool near = (sizes.window_height - 1) * sizes.dilation_y <= kPlaneReach &&
                      (sizes.window_width - 1) * sizes.dilation_x <= kPlaneReach;
    return channels == 1 && near && std::max(sizes.stride_y, sizes.stride_x) <= kPlaneStride;
  }
  bool of_rows() const {
    const std::size_t windows = sizes.windows();
    const auto steps = [](std::size_t n) { return Ceil(n, kColumnStep); };
    return windows < kFewWindows && steps(filters) * windows <= steps(windows) * filters;
  }
};

/// Filters that one call of a product multiplies: equal parts of a group.
struct FilterBlocks {
  std::size_t count, size;

  FilterBlocks(std::size_t filters, std::size_t filter_bytes) {
    const std::size_t most =
        std::min(std::max<std::size_t>(kFilterBytes / filter_bytes, 32), kGatherMmMaxRows);
    size = Ceil(Ceil(filters, Ceil(filters, most)), 8) * 8;
    count = Ceil(filters, size);
  }
};

/// The filters of all groups with their biases: packed rows of products, or if windows are the
/// rows, a packed matrix for each group. `bias` may be null.
ScratchMemory PackFilters(const ConvolutionProblem& p, const void* weight, const void* bias,
                          DType dtype, Target target);

}  // namespace coreai
