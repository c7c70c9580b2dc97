#include "ops/attention/attention_op.h"
#include "ops/op_list.h"

namespace coreai {
namespace {

namespace names = schema::paged_attention;
static_assert(names::kInputCount == 6 && names::kAttributeCount == 2, "the declaration changed");

class PagedAttentionOp : public AttentionOp {
 public:
  PagedAttentionOp(const KernelInfo& info, DType dtype, Target target)
      : AttentionOp(info, dtype, FindAttention(target, dtype),
                    AttentionUsesTileRegisters(target, dtype)) {}

  void Compute(const KernelContext& context) const override {
    Run(context, {context.Input(names::kQueryInput), context.Input(names::kKeyPoolInput),
                  context.Input(names::kValuePoolInput), context.Input(names::kBlockTableInput),
                  context.Input(names::kAttnMaskInput), context.Input(names::kSinksInput)});
  }
};

// [batch, heads, queries] of query and the last size of value_pool.
void InferShape(const ShapeInference& shapes) {
  SymbolicShape output = shapes.Input(names::kQueryInput);
  const SymbolicShape value = shapes.Input(names::kValuePoolInput);
  if (output.rank() != 4 || value.rank() != 4) return;
  output.sizes[3] = value.sizes[3];
  output.names[3] = value.names[3];
  shapes.SetOutput(0, output);
}

}  // namespace

const OpDefinition kPagedAttentionOp = Define<PagedAttentionOp>(names::kComposite, InferShape);

}  // namespace coreai
