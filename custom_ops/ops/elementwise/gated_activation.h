#pragma once

#include "kernels/elementwise/gated_activation.h"
#include "ops/checks.h"
#include "ort/op.h"

namespace coreai {

/// output = activation(gate) * up; gate and up are inputs 0 and 1, of one shape.
class GatedActivationOp : public Op {
 public:
  GatedActivationOp(const Checker& check, DType dtype, GatedActivationKernel kernel)
      : check_(check), dtype_(dtype), kernel_(kernel) {}

  void Compute(const KernelContext& context) const override;

 private:
  Checker check_;
  DType dtype_;
  GatedActivationKernel kernel_;
};

}  // namespace coreai
