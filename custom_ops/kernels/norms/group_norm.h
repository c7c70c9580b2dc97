#pragma once

#include <cstddef>

#include "kernels/dtype.h"
#include "simd/target.h"

namespace coreai {

/// One group of channels of one batch entry. Pointers need only the alignment of their element;
/// output is input, or overlaps nothing.
struct GroupNormGroup {
  const void* input;  ///< [channels, places] of the kernel's type
  const void* scale;  ///< [channels] of the compute type, or null
  const void* bias;   ///< like scale
  void* output;       ///< like input
  std::size_t channels;
  std::size_t places;
  double eps;
};

using GroupNormKernel = void (*)(const GroupNormGroup&);

/// output = (input - mean) / sqrt(variance + eps) * scale + bias, with the statistics of the whole
/// group in float (double for float64), the variance in a second pass around the mean.
GroupNormKernel FindGroupNorm(Target target, DType dtype);

}  // namespace coreai
