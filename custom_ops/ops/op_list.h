#pragma once

#include "ops/op.h"

namespace coreai {

extern const OpDefinition kGatedDeltaUpdateOp;
extern const OpDefinition kGatherMmOp;
extern const OpDefinition kGegluOp;
extern const OpDefinition kGroupNormOp;
extern const OpDefinition kKvCacheUpdateOp;
extern const OpDefinition kLayerNormOp;
extern const OpDefinition kRmsNormOp;
extern const OpDefinition kRopeOp;
extern const OpDefinition kScaledDotProductAttentionOp;
extern const OpDefinition kSkipLayerNormOp;
extern const OpDefinition kSkipRmsNormOp;
extern const OpDefinition kSwigluOp;

/// `create` of a definition whose kernel is a `Kernel`.
template <class Kernel>
std::unique_ptr<Op> MakeOp(const KernelInfo& info, DType dtype, Target target) {
  return std::make_unique<Kernel>(info, dtype, target);
}

/// `infer_shape` of an op whose output has the shape of its first input.
void ShapeOfFirstInput(const ShapeInference& shapes);

/// The same for an op with two outputs like that.
void ShapesOfFirstInput(const ShapeInference& shapes);

/// `infer_shape` of an op whose output shape is known only when it runs.
void NoShape(const ShapeInference& shapes);

}  // namespace coreai
