#pragma once

#include "kernels/gated_activation.h"
#include "ops/checks.h"

namespace coreai {

/// Checks gate and up, which must have one shape, and computes the output. Throws OpError.
void RunGatedActivation(const Checker& check, const KernelContext& context, DType dtype,
                        GatedActivationKernel kernel, const TensorView& gate, const TensorView& up);

}  // namespace coreai
