#pragma once

#include <cstddef>

#include "kernels/dtype.h"
#include "simd/target.h"

namespace coreai {

/// Rows to normalize. Pointers need only the alignment of their element; output is input, or
/// overlaps nothing.
struct LayerNormRows {
  const void* input;  ///< [rows, row_size] of the kernel's type
  const void* scale;  ///< [row_size] of that type or, `wide_affine`, of the compute type; or null
  const void* bias;   ///< like scale
  void* output;       ///< [rows, row_size] of the kernel's type
  std::size_t rows;
  std::size_t row_size;
  double eps;
};

using LayerNormKernel = void (*)(const LayerNormRows&);

/// output = (input - mean) / sqrt(variance + eps) * scale + bias. The variance is summed in a
/// second pass over the centered row; everything is in float (double for float64) and rounded once.
LayerNormKernel FindLayerNorm(Target target, DType dtype, bool wide_affine);

}  // namespace coreai
