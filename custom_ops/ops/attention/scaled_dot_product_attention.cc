#include "ops/attention/attention_op.h"
#include "ops/op_list.h"

namespace coreai {
namespace {

namespace names = schema::scaled_dot_product_attention;
namespace bshd = schema::scaled_dot_product_attention_bshd;
static_assert(names::kInputCount == 5 && names::kAttributeCount == 5, "the declaration changed");
static_assert(bshd::kInputCount == 4 && bshd::kAttributeCount == 3, "the declaration changed");

class ScaledDotProductAttentionOp : public AttentionOp {
 public:
  ScaledDotProductAttentionOp(const KernelInfo& info, DType dtype, Target target)
      : AttentionOp(info, dtype, FindAttention(target, dtype),
                    AttentionUsesTileRegisters(target, dtype)) {}

  void Compute(const KernelContext& context) const override {
    Run(context, {context.Input(names::kQueryInput), context.Input(names::kKeyInput),
                  context.Input(names::kValueInput), TensorView(),
                  context.Input(names::kAttnMaskInput), context.Input(names::kSinksInput)});
  }
};

// The same with the heads of a token side by side. Attributes that it has not are absent.
class BshdAttentionOp : public AttentionOp {
 public:
  BshdAttentionOp(const KernelInfo& info, DType dtype, Target target)
      : AttentionOp(info, dtype, FindAttention(target, dtype),
                    AttentionUsesTileRegisters(target, dtype)) {}

  void Compute(const KernelContext& context) const override {
    AttentionTensors tensors = {context.Input(bshd::kQueryInput),    context.Input(bshd::kKeyInput),
                                context.Input(bshd::kValueInput),    TensorView(),
                                context.Input(bshd::kAttnMaskInput), TensorView()};
    tensors.bshd = true;
    Run(context, tensors);
  }
};

// The first three sizes of query and the last size of value.
void InferShape(const ShapeInference& shapes) {
  SymbolicShape output = shapes.Input(names::kQueryInput);
  const SymbolicShape value = shapes.Input(names::kValueInput);
  if (output.rank() != 4 || value.rank() != 4) return;
  output.sizes[3] = value.sizes[3];
  output.names[3] = value.names[3];
  shapes.SetOutput(0, output);
}

}  // namespace

const OpDefinition kScaledDotProductAttentionOp =
    Define<ScaledDotProductAttentionOp>(names::kComposite, InferShape);
const OpDefinition kScaledDotProductAttentionBshdOp =
    Define<BshdAttentionOp>(schema::scaled_dot_product_attention_bshd::kComposite, InferShape);

}  // namespace coreai
