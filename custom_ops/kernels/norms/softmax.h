#pragma once

#include <cstddef>

#include "kernels/dtype.h"
#include "simd/target.h"

namespace coreai {

/// Rows to normalize. Pointers need only the alignment of their element; output is input, or
/// overlaps nothing.
struct SoftmaxRows {
  const void* input;  ///< [rows, row_size] of the kernel's type
  void* output;       ///< like input
  std::size_t rows;
  std::size_t row_size;  ///< at least 1
};

using SoftmaxKernel = void (*)(const SoftmaxRows&);

/// output = exp(input - max(input)) / sum(exp(input - max(input))) per row, in float (double for
/// float64). A row with NaN, or of -inf only, is NaN.
SoftmaxKernel FindSoftmax(Target target, DType dtype);

}  // namespace coreai
