#pragma once

#include "ops/op.h"

namespace coreai {

extern const OpDefinition kGatedDeltaUpdateOp;
extern const OpDefinition kRmsNormOp;
extern const OpDefinition kLayerNormOp;
extern const OpDefinition kRopeOp;
extern const OpDefinition kScaledDotProductAttentionOp;

/// `create` of a definition whose kernel is a `Kernel`.
template <class Kernel>
std::unique_ptr<Op> MakeOp(const KernelInfo& info, DType dtype, Target target) {
  return std::make_unique<Kernel>(info, dtype, target);
}

/// `infer_shape` of an op whose output has the shape of its first input.
void ShapeOfFirstInput(const ShapeInference& shapes);

}  // namespace coreai
