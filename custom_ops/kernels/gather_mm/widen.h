#pragma once

#include <cstddef>

#include "kernels/dtype.h"
#include "simd/target.h"

namespace coreai {

/// Converts `count` elements to the compute type. Pointers need only the alignment of their
/// element.
using WidenKernel = void (*)(const void* input, std::size_t count, void* output);

WidenKernel FindWiden(Target target, DType dtype);

}  // namespace coreai
