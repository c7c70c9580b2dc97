#include "kernels/rms_norm.h"
#include "ops/norm_axes.h"
#include "ops/op_list.h"
#include "ops/residual.h"
#include "ops/row_parameter.h"

namespace coreai {
namespace {

namespace names = schema::skip_rms_norm;
static_assert(names::kInputCount == 3 && names::kAttributeCount == 2, "the declaration changed");

class SkipRmsNormOp : public Op {
 public:
  SkipRmsNormOp(const KernelInfo& info, DType dtype, Target target)
      : check_(info.op()),
        axes_(check_, info.Ints(names::kAxes, {names::kAxesDefault[0]})),
        eps_(info.Float(names::kEps, names::kEpsDefault)),
        dtype_(dtype),
        add_(FindResidualAdd(target, dtype)),
        kernels_{FindRmsNorm(target, dtype, false), FindRmsNorm(target, dtype, true)} {}

  void Compute(const KernelContext& context) const override {
    const TensorView input = context.Input(names::kInputInput);
    const TensorView skip = context.Input(names::kSkipInput);
    const TensorView given = context.Input(names::kScaleInput);
    const std::size_t first = axes_.First(check_, input.shape);
    const RowParameter scale(check_, "scale", given, input.shape, first, dtype_, false);
    const ResidualRows rows(check_, context, dtype_, add_, input, skip);
    const std::size_t row_size = ElementCount(input.shape, first, input.shape.size());
    // As in rms_norm: a float32 scale is applied before rounding, any other one after.
    const bool round_first = given.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    const RmsNormKernel kernel = kernels_[scale.wide() ? 1 : 0];
    rows.Run(first, scale.run(),
             [&](const char* sum, char* output, std::size_t row, std::size_t count) {
               kernel({sum, scale.Row(row), output, count, row_size, static_cast<double>(eps_),
                       round_first});
             });
  }

 private:
  Checker check_;
  NormAxes axes_;
  float eps_;
  DType dtype_;
  ResidualAddKernel add_;
  RmsNormKernel kernels_[2];  // scale in the op's own type, in the type computed in
};

}  // namespace

const OpDefinition kSkipRmsNormOp = {names::kComposite, MakeOp<SkipRmsNormOp>, ShapesOfFirstInput};

}  // namespace coreai
