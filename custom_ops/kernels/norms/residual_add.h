#pragma once

#include <cstddef>

#include "kernels/dtype.h"
#include "simd/target.h"

namespace coreai {

/// sum = input + skip, rounded to the kernel's type. Pointers need only the alignment of their
/// element; sum is input or skip, or overlaps neither.
using ResidualAddKernel = void (*)(const void* input, const void* skip, std::size_t count,
                                   void* sum);

ResidualAddKernel FindResidualAdd(Target target, DType dtype);

}  // namespace coreai
