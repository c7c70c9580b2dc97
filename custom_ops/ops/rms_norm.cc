#include "kernels/rms_norm.h"

#include "ops/checks.h"
#include "ops/norm_axes.h"
#include "ops/op.h"
#include "ops/op_list.h"
#include "ops/row_parameter.h"
#include "ops/row_split.h"

namespace coreai {
namespace {

namespace names = schema::rms_norm;
static_assert(names::kInputCount == 2 && names::kAttributeCount == 2, "the declaration changed");

class RmsNormOp : public Op {
 public:
  RmsNormOp(const KernelInfo& info, DType dtype, Target target)
      : check_(info.op()),
        axes_(check_, info.Ints(names::kAxes, {names::kAxesDefault[0]})),
        eps_(info.Float(names::kEps, names::kEpsDefault)),
        dtype_(dtype),
        kernels_{FindRmsNorm(target, dtype, false), FindRmsNorm(target, dtype, true)} {}

  void Compute(const KernelContext& context) const override {
    const TensorView input = context.Input(names::kInputInput);
    check_.Require("input", input, dtype_);
    const std::size_t first = axes_.First(check_, input.shape);
    const TensorView given = context.Input(names::kScaleInput);
    const RowParameter scale(check_, "scale", given, input.shape, first, dtype_, false);
    auto* output = static_cast<char*>(context.Output(0, input.shape));

    const std::size_t rows = ElementCount(input.shape, 0, first);
    const std::size_t row_size = ElementCount(input.shape, first, input.shape.size());
    const std::size_t row_bytes = row_size * SizeOf(dtype_);
    if (row_size == 0) return;
    // A float32 scale is applied before rounding to the output's type, any other one after.
    const bool round_first = given.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    const RmsNormKernel kernel = kernels_[scale.wide() ? 1 : 0];
    SplitRows(context, rows, row_size, scale.run(), [&](std::size_t row, std::size_t count) {
      kernel({static_cast<const char*>(input.data) + row * row_bytes, scale.Row(row),
              output + row * row_bytes, count, row_size, static_cast<double>(eps_), round_first});
    });
  }

 private:
  Checker check_;
  NormAxes axes_;
  float eps_;
  DType dtype_;
  RmsNormKernel kernels_[2];  // scale in the op's own type, in the type computed in
};

}  // namespace

const OpDefinition kRmsNormOp = {names::kComposite, MakeOp<RmsNormOp>, ShapeOfFirstInput};

}  // namespace coreai
