#pragma once

#include "ops/schema.h"
#include "ort/op.h"

namespace coreai {

/// Every op of the library, by the name of its definition; cmake/SelectOps.cmake selects some.
#ifdef COREAI_SELECTED_OPS
#include "selected_ops.h"
#else
#define COREAI_EACH_OP(V)             \
  V(kAddBiasOp)                       \
  V(kAddLowRankOp)                    \
  V(kAllGatherOp)                     \
  V(kAllReduceOp)                     \
  V(kAttentionNbitsOp)                \
  V(kConvolutionOp)                   \
  V(kGatedDeltaUpdateOp)              \
  V(kGatherMmOp)                      \
  V(kGatherMmNbitsOp)                 \
  V(kGegluOp)                         \
  V(kGroupNormOp)                     \
  V(kKvCacheUpdateOp)                 \
  V(kLayerNormOp)                     \
  V(kLinearNbitsOp)                   \
  V(kPagedAttentionOp)                \
  V(kPagedAttentionNbitsOp)           \
  V(kRmsNormOp)                       \
  V(kRopeOp)                          \
  V(kScaledDotProductAttentionOp)     \
  V(kScaledDotProductAttentionBshdOp) \
  V(kSkipLayerNormOp)                 \
  V(kSkipRmsNormOp)                   \
  V(kSoftmaxOp)                       \
  V(kSwigluOp)
#endif

#define COREAI_DECLARE(name) extern const OpDefinition name;
COREAI_EACH_OP(COREAI_DECLARE)
#undef COREAI_DECLARE

/// The list of them.
OpList AllOps();

/// The definition of an op that is implemented by `Kernel`.
template <class Kernel>
constexpr OpDefinition Define(const schema::Composite& composite,
                              void (*infer_shape)(const ShapeInference& shapes)) {
  const auto create = [](const KernelInfo& info, DType dtype,
                         Target target) -> std::unique_ptr<Op> {
    return std::make_unique<Kernel>(info, dtype, target);
  };
  return {composite, create, infer_shape};
}

/// `infer_shape` of an op whose output has the shape of its first input.
void ShapeOfFirstInput(const ShapeInference& shapes);

/// The same for an op with two such outputs.
void ShapesOfFirstInput(const ShapeInference& shapes);

/// `infer_shape` of an op whose output shape is known only when it runs.
void NoShape(const ShapeInference& shapes);

}  // namespace coreai
