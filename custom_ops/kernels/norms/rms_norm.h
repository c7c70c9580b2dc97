#pragma once

#include <cstddef>

#include "kernels/dtype.h"
#include "simd/target.h"

namespace coreai {

/// Rows to normalize. Pointers need only the alignment of their element; output is input, or
/// overlaps nothing.
struct RmsNormRows {
  const void* input;  ///< [rows, row_size] of the kernel's type
  const void* scale;  ///< [row_size] of that type or, `wide_scale`, of the compute type; or null
  void* output;       ///< [rows, row_size] of the kernel's type
  std::size_t rows;
  std::size_t row_size;
  double eps;
  bool round_before_scale;  ///< round the normalized value to the output type, then scale
};

using RmsNormKernel = void (*)(const RmsNormRows&);

/// output = input / sqrt(mean(input^2) + eps) * scale, accumulated in float (double for float64).
RmsNormKernel FindRmsNorm(Target target, DType dtype, bool wide_scale);

}  // namespace coreai
