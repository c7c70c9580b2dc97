#pragma once

#include <cstddef>

#include "kernels/dtype.h"
#include "kernels/elementwise/activation.h"
#include "simd/target.h"

namespace coreai {

/// Pointers need only the alignment of their element. Output is input, or overlaps neither.
struct AddBias {
  const void* input;  ///< [rows, columns]
  const void* bias;   ///< [columns]
  void* output;       ///< [rows, columns]
  std::size_t rows;
  std::size_t columns;
};

using AddBiasKernel = void (*)(const AddBias&);

/// output = activation(input + bias), computed in float (double for float64), rounded once.
AddBiasKernel FindAddBias(Target target, DType dtype, Activation activation);

}  // namespace coreai
