#pragma once

#include <cstddef>

#include "kernels/dtype.h"
#include "kernels/elementwise/activation.h"
#include "simd/target.h"

namespace coreai {

/// Pointers need only the alignment of their element. Output is gate or up, or overlaps neither.
struct GatedActivation {
  const void* gate;
  const void* up;
  void* output;
  std::size_t count;
};

using GatedActivationKernel = void (*)(const GatedActivation&);

/// output = activation(gate) * up, computed in float (double for float64), rounded once. The
/// activation is a gate: kSilu, kGelu or kGeluTanh.
GatedActivationKernel FindGatedActivation(Target target, DType dtype, Activation activation);

}  // namespace coreai
