#pragma once

#include <cstddef>

#include "kernels/dtype.h"
#include "kernels/gather_mm/gather_mm.h"
#include "simd/target.h"

namespace coreai {

/// The windows of a convolution, which are the same in every plane.
struct ConvolutionSizes {
  std::size_t height, width;  ///< of a plane of the input, below 2^31 elements
  std::size_t window_height, window_width;
  std::size_t out_height, out_width;   ///< the numbers of windows
  std::size_t stride_y, stride_x;      ///< of the next window
  std::size_t dilation_y, dilation_x;  ///< of the next element of a window
  std::size_t top, left;               ///< zeros before a plane

  std::size_t windows() const { return out_height * out_width; }
  std::size_t window_size() const { return window_height * window_width; }
};

/// Columns of the matrix of windows. A column is a window [window_height, window_width, channels],
/// and a one behind it, so that a bias is one more weight.
struct ConvolutionColumns {
  const ConvolutionSizes& sizes;
  const void* input;  ///< [channels, height, width]
  std::size_t channels;
  std::size_t first;  ///< the window of the first column
  std::size_t count;
  void* packed;  ///< as a matrix that GatherMmPackRight has written, aligned to 64

  std::size_t depth() const { return sizes.window_size() * channels + 1; }
};

/// Packs columns. The dtype is that of all numbers, float32 or float64.
using ConvolutionPackKernel = void (*)(const ConvolutionColumns&);
ConvolutionPackKernel FindConvolutionPack(Target target, DType dtype);

/// Adds a residual to `count` results, and replaces negative sums by zero.
struct ConvolutionFinish {
  const void* residual;  ///< [count], or null
  bool relu;
  std::size_t count;
  void* output;
};
using ConvolutionFinishKernel = void (*)(const ConvolutionFinish&);
ConvolutionFinishKernel FindConvolutionFinish(Target target, DType dtype);

/// Packs `columns` filters, of `depth` elements each, in panels for a target. `packed` has
/// GatherMmPackedBytes(...) bytes and is aligned to 64.
GatherMmPackRightKernel FindConvolutionPackFilters(Target target, DType dtype);

/// Windows of a group of channels, and filters in the lanes of vectors.
struct ConvolutionFilters {
  const ConvolutionSizes& sizes;
  const void* input;  ///< [channels, height, width]
  std::size_t channels;
  std::size_t first;    ///< window
  std::size_t count;    ///< of windows, at least 1
  const void* packed;   ///< [channels, window_height, window_width] of each filter, as a matrix
                        ///< that GatherMmPackRight has written
  const void* bias;     ///< [filters], or null
  std::size_t filters;  ///<
  std::size_t first_filter;  ///< those to compute are [first_filter, last_filter); the first is a
  std::size_t last_filter;   ///< multiple of kConvolutionPanelStep
  void* output;              ///< [filters, out_height, out_width]
  const void* residual;      ///< [filters, out_height, out_width], or null: see ConvolutionFinish
  bool relu;
};

/// A multiple of the number of filters in a panel of every target and type.
inline constexpr std::size_t kConvolutionPanelStep = 64;

/// Bytes of the scratch memory of a call, aligned to 64, for windows that begin with a row or are
/// all in one. The dtype is that of all numbers.
std::size_t ConvolutionFiltersScratch(const ConvolutionSizes& sizes, std::size_t channels,
                                      std::size_t count, DType dtype);

/// Computes windows. Products are added in the order of a filter, in blocks, which are then added
/// to the bias: in the same order for any number of windows and filters, on every target.
using ConvolutionFiltersKernel = void (*)(const ConvolutionFilters&, void* scratch);
ConvolutionFiltersKernel FindConvolutionFilters(Target target, DType dtype);

/// Filters that read one plane each.
struct ConvolutionPlanes {
  const ConvolutionSizes& sizes;
  const void* input;     ///< planes [height, width]
  const void* weight;    ///< [filters, window_height, window_width]
  const void* bias;      ///< [filters], or null
  void* output;          ///< [filters, out_height, out_width]
  std::size_t filters;   ///<
  std::size_t multiple;  ///< of filters that read the same plane, one after the other
};

/// The number of filters in the lanes of a vector on any target.
inline constexpr std::size_t kConvolutionFilterStep = 16;

/// Bytes of the scratch memory of a call, aligned to 64: padded planes, in parts of some windows.
std::size_t ConvolutionPlanesScratch(const ConvolutionSizes& sizes);

/// Computes planes. A sum begins with the bias, and its products are added in the order of the
/// window.
using ConvolutionPlanesKernel = void (*)(const ConvolutionPlanes&, void* scratch);
ConvolutionPlanesKernel FindConvolutionPlanes(Target target, DType dtype);

/// Rounds `count` numbers of the compute type to a type.
using NarrowKernel = void (*)(const void* input, std::size_t count, void* output);
NarrowKernel FindNarrow(Target target, DType dtype);

}  // namespace coreai
