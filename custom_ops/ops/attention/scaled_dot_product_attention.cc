#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/attention/attention.h"
#include "ops/attention/attention_inputs.h"
#include "ops/item_pool.h"
#include "ops/op_list.h"

namespace coreai {
namespace {

namespace names = schema::scaled_dot_product_attention;
static_assert(names::kInputCount == 5 && names::kAttributeCount == 5, "the declaration changed");

class ScaledDotProductAttentionOp : public Op {
 public:
  ScaledDotProductAttentionOp(const KernelInfo& info, DType dtype, Target target)
      : check_(info.op()),
        has_scale_(info.Has(names::kScale)),
        scale_(info.Float(names::kScale, 0)),
        softcap_(info.Float(names::kSoftcap, names::kSoftcapDefault)),
        is_causal_(info.Int(names::kIsCausal, names::kIsCausalDefault) != 0),
        window_(info.Int(names::kWindowSize, names::kWindowSizeDefault)),
        dtype_(dtype),
        deterministic_(info.deterministic()),
        kernel_(FindAttention(target, dtype)),
        tile_registers_(AttentionUsesTileRegisters(target, dtype)) {
    const std::string alignment =
        info.String(names::kCausalAlignment, names::kCausalAlignmentDefault);
    lower_right_ = alignment == "lower_right";
    if (!lower_right_ && alignment != "upper_left") {
      check_.Fail("attribute causal_alignment is \"" + alignment +
                  "\", expected \"lower_right\" or \"upper_left\"");
    }
    if (std::isnan(softcap_)) check_.Fail("attribute softcap is nan, expected a number");
  }

  void Compute(const KernelContext& context) const override {
    const AttentionInputs inputs(
        check_,
        {context.Input(names::kQueryInput), context.Input(names::kKeyInput),
         context.Input(names::kValueInput), TensorView(), context.Input(names::kAttnMaskInput),
         context.Input(names::kSinksInput)},
        dtype_);
    const Shape shape = inputs.OutputShape();
    AttentionProblem problem = {};
    inputs.Describe(&problem);
    problem.output = context.Output(0, shape);
    if (ElementCount(shape) == 0) return;
    // Without elements, scores are 0, which an infinite scale would turn into NaN on some targets.
    const auto head_dim = static_cast<double>(std::max<std::size_t>(1, problem.head_dim));
    problem.scale = has_scale_ ? static_cast<double>(scale_) : 1.0 / std::sqrt(head_dim);
    problem.softcap = std::max(0.0, static_cast<double>(softcap_));
    problem.causal = is_causal_;
    const auto queries = static_cast<std::int64_t>(problem.queries);
    const auto keys = static_cast<std::int64_t>(problem.keys);
    // A window larger than every distance has no effect; dropping it avoids overflow.
    problem.window = std::max<std::int64_t>(0, std::min(window_, queries + keys));
    problem.offset = lower_right_ ? keys - queries : 0;
    problem.deterministic = deterministic_;
    problem.tile_registers = tile_registers_;
    RunItems(context, AttentionItems(problem), AttentionScratchBytes(problem, dtype_),
             [&](std::size_t item, void* scratch) { kernel_(problem, item, scratch); });
  }

 private:
  Checker check_;
  bool has_scale_;
  float scale_;
  float softcap_;
  bool is_causal_;
  std::int64_t window_;
  bool lower_right_ = true;
  DType dtype_;
  bool deterministic_;
  AttentionKernel kernel_;
  bool tile_registers_;
};

// [batch, heads, queries] of query and the last size of value.
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

}  // namespace coreai
