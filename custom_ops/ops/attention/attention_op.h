#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/attention/attention.h"
#include "ops/attention/attention_inputs.h"
#include "ops/item_pool.h"
#include "ops/schema.h"
#include "ort/op.h"

namespace coreai {

/// The attributes of attention, which composites share, and the run of a kernel.
class AttentionOp : public Op {
 public:
  /// Throws OpError if an attribute is invalid.
  AttentionOp(const KernelInfo& info, DType dtype, AttentionKernel kernel, bool tile_registers)
      : check_(info.op()),
        dtype_(dtype),
        has_scale_(info.Has(schema::scaled_dot_product_attention::kScale)),
        scale_(info.Float(schema::scaled_dot_product_attention::kScale, 0)),
        softcap_(info.Float(schema::scaled_dot_product_attention::kSoftcap,
                            schema::scaled_dot_product_attention::kSoftcapDefault)),
        is_causal_(info.Int(schema::scaled_dot_product_attention::kIsCausal,
                            schema::scaled_dot_product_attention::kIsCausalDefault) != 0),
        window_(info.Int(schema::scaled_dot_product_attention::kWindowSize,
                         schema::scaled_dot_product_attention::kWindowSizeDefault)),
        deterministic_(info.deterministic()),
        kernel_(kernel),
        tile_registers_(tile_registers) {
    const std::string alignment =
        info.String(schema::scaled_dot_product_attention::kCausalAlignment,
                    schema::scaled_dot_product_attention::kCausalAlignmentDefault);
    lower_right_ = alignment == "lower_right";
    if (!lower_right_ && alignment != "upper_left") {
      check_.Fail("attribute causal_alignment is \"" + alignment +
                  "\", expected \"lower_right\" or \"upper_left\"");
    }
    if (std::isnan(softcap_)) check_.Fail("attribute softcap is nan, expected a number");
  }

 protected:
  /// Computes output 0. Throws OpError if an input is invalid.
  void Run(const KernelContext& context, const AttentionTensors& tensors) const {
    const AttentionInputs inputs(check_, tensors, dtype_);
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

  Checker check_;
  DType dtype_;

 private:
  bool has_scale_;
  float scale_;
  float softcap_;
  bool is_causal_;
  std::int64_t window_;
  bool lower_right_ = true;
  bool deterministic_;
  AttentionKernel kernel_;
  bool tile_registers_;
};

}  // namespace coreai
