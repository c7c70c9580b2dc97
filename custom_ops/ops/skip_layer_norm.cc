#include "kernels/layer_norm.h"
#include "ops/norm_axes.h"
#include "ops/op_list.h"
#include "ops/residual.h"
#include "ops/row_parameter.h"

namespace coreai {
namespace {

namespace names = schema::skip_layer_norm;
static_assert(names::kInputCount == 4 && names::kAttributeCount == 2, "the declaration changed");

class SkipLayerNormOp : public Op {
 public:
  SkipLayerNormOp(const KernelInfo& info, DType dtype, Target target)
      : check_(info.op()),
        axes_(check_, info.Ints(names::kAxes, {names::kAxesDefault[0]})),
        eps_(info.Float(names::kEps, names::kEpsDefault)),
        dtype_(dtype),
        add_(FindResidualAdd(target, dtype)),
        kernels_{FindLayerNorm(target, dtype, false), FindLayerNorm(target, dtype, true)} {}

  void Compute(const KernelContext& context) const override {
    const TensorView input = context.Input(names::kInputInput);
    const TensorView skip = context.Input(names::kSkipInput);
    const std::size_t first = axes_.First(check_, input.shape);
    const RowParameterPair affine(check_, "scale", context.Input(names::kScaleInput), "bias",
                                  context.Input(names::kBiasInput), input.shape, first, dtype_);
    const ResidualRows rows(check_, context, dtype_, add_, input, skip);
    const std::size_t row_size = ElementCount(input.shape, first, input.shape.size());
    const LayerNormKernel kernel = kernels_[affine.wide() ? 1 : 0];
    rows.Run(first, affine.run(),
             [&](const char* sum, char* output, std::size_t row, std::size_t count) {
               kernel({sum, affine.first.Row(row), affine.second.Row(row), output, count, row_size,
                       static_cast<double>(eps_)});
             });
  }

 private:
  Checker check_;
  NormAxes axes_;
  float eps_;
  DType dtype_;
  ResidualAddKernel add_;
  LayerNormKernel kernels_[2];  // scale and bias in the op's own type, in the type computed in
};

}  // namespace

const OpDefinition kSkipLayerNormOp = {names::kComposite, MakeOp<SkipLayerNormOp>,
                                       ShapesOfFirstInput};

}  // namespace coreai
