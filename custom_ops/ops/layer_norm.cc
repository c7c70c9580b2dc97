#include "kernels/layer_norm.h"

#include "ops/checks.h"
#include "ops/norm_axes.h"
#include "ops/op_list.h"
#include "ops/row_parameter.h"
#include "ops/row_split.h"

namespace coreai {
namespace {

namespace names = schema::layer_norm;
static_assert(names::kInputCount == 3 && names::kAttributeCount == 2, "the declaration changed");

class LayerNormOp : public Op {
 public:
  LayerNormOp(const KernelInfo& info, DType dtype, Target target)
      : check_(info.op()),
        axes_(check_, info.Ints(names::kAxes, {names::kAxesDefault[0]})),
        eps_(info.Float(names::kEps, names::kEpsDefault)),
        dtype_(dtype),
        kernels_{FindLayerNorm(target, dtype, false), FindLayerNorm(target, dtype, true)} {}

  void Compute(const KernelContext& context) const override {
    const TensorView input = context.Input(names::kInputInput);
    check_.Require("input", input, dtype_);
    const std::size_t first = axes_.First(check_, input.shape);
    const RowParameterPair affine(check_, "scale", context.Input(names::kScaleInput), "bias",
                                  context.Input(names::kBiasInput), input.shape, first, dtype_);
    auto* output = static_cast<char*>(context.Output(0, input.shape));
    const std::size_t rows = ElementCount(input.shape, 0, first);
    const std::size_t row_size = ElementCount(input.shape, first, input.shape.size());
    const std::size_t row_bytes = row_size * SizeOf(dtype_);
    if (row_size == 0) return;
    const LayerNormKernel kernel = kernels_[affine.wide() ? 1 : 0];
    SplitRows(context, rows, row_size, affine.run(), [&](std::size_t row, std::size_t count) {
      kernel({static_cast<const char*>(input.data) + row * row_bytes, affine.first.Row(row),
              affine.second.Row(row), output + row * row_bytes, count, row_size,
              static_cast<double>(eps_)});
    });
  }

 private:
  Checker check_;
  NormAxes axes_;
  float eps_;
  DType dtype_;
  LayerNormKernel kernels_[2];  // scale and bias in the op's own type, in the type computed in
};

}  // namespace

const OpDefinition kLayerNormOp = {names::kComposite, MakeOp<LayerNormOp>, ShapeOfFirstInput};

}  // namespace coreai
