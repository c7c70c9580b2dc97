#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "ops/few_bits/few_bits_inputs.h"
#include "ops/few_bits/few_bits_op.h"
#include "ops/op_list.h"
#include "ops/row_split.h"
#include "ops/widened.h"

namespace coreai {
namespace {

namespace names = schema::linear_nbits;
static_assert(names::kInputCount == 10 && names::kAttributeCount == 4, "the declaration changed");

class LinearNbitsOp : public Op {
 public:
  LinearNbitsOp(const KernelInfo& info, DType dtype, Target target)
      : check_(info.op()),
        dtype_(dtype),
        op_(info, check_, dtype, target),
        inputs_(op_.attributes()) {
    FewBitsInputs constants = inputs_;
    constants.Read([&](std::size_t index) { return info.Constant(index); }, names::kZeroPointsInput,
                   names::kMinimumsInput);
    if (dtype == DType::kFloat64 || !constants.IsComplete()) return;
    constants.Check(check_);
    // Beside a size of 0, others may be too large to count to.
    if (constants.columns() == 0 || constants.groups() == 0) return;
    packed_ = PackedFewBits(constants, info);
    inputs_ = constants;
  }

  void Compute(const KernelContext& context) const override {
    FewBitsInputs inputs = inputs_;
    inputs.Read([&](std::size_t index) { return context.Input(index); }, names::kZeroPointsInput,
                names::kMinimumsInput);
    inputs.Check(check_);
    const TensorView input = context.Input(names::kInputInput);
    const TensorView bias = context.Input(names::kBiasInput);
    CheckSizes(input, bias, inputs);
    Shape shape = input.shape;
    shape.back() = inputs.codes.shape[0];
    auto* const output = static_cast<char*>(context.Output(0, shape));
    if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return;
    const std::size_t rows = ElementCount(shape, 0, shape.size() - 1);
    const std::unique_ptr<char[]> copy =
        Copy(context, input, rows * inputs.groups(), inputs.palette.present);
    const Widened wide_bias = bias ? Widened(bias, dtype_) : Widened();
    const bool packed = packed_.weight().codes != nullptr && inputs.SameMemory(inputs_);
    op_.Multiply(
        context, inputs, packed ? &packed_ : nullptr,
        {copy ? copy.get() : input.data, rows, inputs.columns(), wide_bias.data(), output});
  }

 private:
  void CheckSizes(const TensorView& input, const TensorView& bias,
                  const FewBitsInputs& inputs) const {
    check_.Require("input", input, dtype_);
    const auto group = static_cast<std::int64_t>(inputs.group);
    const std::int64_t depth = input.shape.empty() ? -1 : input.shape.back();
    if (depth < 0 || depth % group != 0 ||
        depth / group != static_cast<std::int64_t>(inputs.groups())) {
      check_.Fail("input input has shape " + ToString(input.shape) + ", expected a last size of " +
                  std::to_string(inputs.groups()) + " groups of " + std::to_string(group));
    }
    if (!bias) return;
    check_.Require("bias", bias, dtype_);
    if (bias.shape != Shape{inputs.codes.shape[0]}) {
      check_.Fail("input bias has shape " + ToString(bias.shape) + ", expected " +
                  ToString({inputs.codes.shape[0]}));
    }
  }

  /// The prepared groups of the input; null if they are the input itself.
  std::unique_ptr<char[]> Copy(const KernelContext& context, const TensorView& input,
                               std::size_t groups, bool has_palette) const {
    if (!op_.NeedsPreparation(has_palette)) return nullptr;
    const std::size_t group = op_.attributes().group, row = group * SizeOf(WideDType(dtype_));
    std::unique_ptr<char[]> copy(new char[groups * row]);
    SplitRows(context, groups, group, groups, [&](std::size_t first, std::size_t count) {
      op_.Prepare(static_cast<const char*>(input.data) + first * group * SizeOf(dtype_), count,
                  has_palette, copy.get() + first * row);
    });
    return copy;
  }

  Checker check_;
  DType dtype_;
  FewBitsOp op_;
  FewBitsInputs inputs_;  // the constants that are packed
  PackedFewBits packed_;
};

void ShapeOfProduct(const ShapeInference& shapes) {
  SymbolicShape output = shapes.Input(names::kInputInput);
  const SymbolicShape codes = shapes.Input(names::kCodesInput);
  if (output.rank() == 0 || codes.rank() != 3) return;
  output.sizes.back() = codes.sizes[0];
  output.names.back() = codes.names[0];
  shapes.SetOutput(0, output);
}

}  // namespace

const OpDefinition kLinearNbitsOp = Define<LinearNbitsOp>(names::kComposite, ShapeOfProduct);

}  // namespace coreai
