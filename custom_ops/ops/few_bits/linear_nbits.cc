#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "kernels/gather_mm/widen.h"
#include "ops/few_bits/few_bits_inputs.h"
#include "ops/few_bits/few_bits_product.h"
#include "ops/op_list.h"
#include "ops/row_split.h"
#include "ops/widened.h"

namespace coreai {
namespace {

namespace names = schema::linear_nbits;
static_assert(names::kInputCount == 6 && names::kAttributeCount == 3, "the declaration changed");

// A sum of products of 8-bit integers and codes fits into 32 bits up to this size of a group.
constexpr std::size_t kLargestExactGroup = std::numeric_limits<std::int32_t>::max() / (255 * 127);
constexpr std::int64_t kLargestGroup = std::int64_t{1} << 40;

/// Rounds groups to multiples of their largest magnitude / 127.
template <typename W>
void RoundGroups(W* x, std::size_t groups, std::size_t group) {
  for (std::size_t g = 0; g < groups; ++g, x += group) {
    W largest = static_cast<W>(kSmallestLargest);
    for (std::size_t i = 0; i < group; ++i) {
      const W magnitude = std::fabs(x[i]);
      if (!(magnitude <= largest)) largest = magnitude;  // also NaN, which stays
    }
    const W inverse = 127 / largest, step = largest / 127;
    for (std::size_t i = 0; i < group; ++i) x[i] = std::nearbyint(x[i] * inverse) * step;
  }
}

class LinearNbitsOp : public Op {
 public:
  LinearNbitsOp(const KernelInfo& info, DType dtype, Target target)
      : check_(info.op()),
        dtype_(dtype),
        inputs_(ReadAttributes(info)),
        rounds_(info.Int(names::kActivationBits, names::kActivationBitsDefault) != 0),
        widen_(FindWiden(target, dtype)),
        product_(dtype, target) {
    FewBitsInputs constants = inputs_;
    constants.codes = info.Constant(names::kCodesInput);
    constants.scales = info.Constant(names::kScalesInput);
    constants.zeros = info.Constant(names::kZeroPointsInput);
    constants.palette = info.Constant(names::kPaletteInput);
    if (dtype == DType::kFloat64 || !constants.codes || !constants.scales) return;
    constants.Check(check_);
    // Beside a size of 0, others may be too large to count to.
    if (constants.columns() == 0 || constants.groups() == 0) return;
    packed_ = PackedFewBits(constants);
    inputs_ = constants;
  }

  void Compute(const KernelContext& context) const override {
    FewBitsInputs inputs = inputs_;
    inputs.codes = context.Input(names::kCodesInput);
    inputs.scales = context.Input(names::kScalesInput);
    inputs.zeros = context.Input(names::kZeroPointsInput);
    inputs.palette = context.Input(names::kPaletteInput);
    inputs.Check(check_);
    const TensorView input = context.Input(names::kInputInput);
    const TensorView bias = context.Input(names::kBiasInput);
    CheckSizes(input, bias, inputs);
    Shape shape = input.shape;
    shape.back() = inputs.codes.shape[0];
    auto* const output = static_cast<char*>(context.Output(0, shape));
    if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return;
    const bool integers = rounds_ && !inputs.palette && dtype_ != DType::kFloat64 &&
                          inputs.group <= kLargestExactGroup;
    const std::size_t rows = ElementCount(shape, 0, shape.size() - 1);
    const std::unique_ptr<char[]> copy =
        Copy(context, input, rows * inputs.groups(), inputs.group, rounds_ && !integers);
    const Widened wide_bias = bias ? Widened(bias, dtype_) : Widened();
    const FewBitsCall call = {copy ? copy.get() : input.data, rows, inputs.columns(),
                              wide_bias.data(), output};
    if (dtype_ == DType::kFloat64) return product_.MultiplyDouble(context, inputs, call);
    PackedFewBits local;
    const bool packed = packed_.weight().codes != nullptr && inputs.SameMemory(inputs_);
    if (!packed) local = PackedFewBits(inputs);
    const FewBitsWeight& weight = (packed ? packed_ : local).weight();
    if (integers) return product_.MultiplyRounded(context, weight, call);
    product_.Multiply(context, weight, call);
  }

 private:
  FewBitsInputs ReadAttributes(const KernelInfo& info) const {
    const std::int64_t bits = info.Int(names::kBits, names::kBitsDefault);
    const std::int64_t group = info.Int(names::kGroupSize, names::kGroupSizeDefault);
    const std::int64_t rounding = info.Int(names::kActivationBits, names::kActivationBitsDefault);
    if (bits != 8 && bits != 4 && bits != 3 && bits != 2) {
      check_.Fail("attribute bits is " + std::to_string(bits) + ", expected 8, 4, 3 or 2");
    }
    if (rounding != 0 && rounding != 8) {
      check_.Fail("attribute activation_bits is " + std::to_string(rounding) + ", expected 0 or 8");
    }
    if (group < 1 || group > kLargestGroup || group * bits % 8 != 0) {
      check_.Fail("attribute group_size is " + std::to_string(group) +
                  ", expected whole bytes of " + std::to_string(bits) + "-bit codes");
    }
    FewBitsInputs inputs;
    inputs.bits = static_cast<std::size_t>(bits);
    inputs.group = static_cast<std::size_t>(group);
    return inputs;
  }

  void CheckSizes(const TensorView& input, const TensorView& bias,
                  const FewBitsInputs& inputs) const {
    check_.Require("input", input, dtype_);
    const auto group = static_cast<std::int64_t>(inputs.group);
    const std::int64_t depth = input.shape.empty() ? -1 : input.shape.back();
    if (depth < 0 || depth % group != 0 || depth / group != inputs.codes.shape[1]) {
      check_.Fail("input input has shape " + ToString(input.shape) + ", expected a last size of " +
                  std::to_string(inputs.codes.shape[1]) + " groups of " + std::to_string(group));
    }
    if (!bias) return;
    check_.Require("bias", bias, dtype_);
    if (bias.shape != Shape{inputs.codes.shape[0]}) {
      check_.Fail("input bias has shape " + ToString(bias.shape) + ", expected " +
                  ToString({inputs.codes.shape[0]}));
    }
  }

  /// The input's groups in the compute type, perhaps rounded; null if they are the input itself.
  std::unique_ptr<char[]> Copy(const KernelContext& context, const TensorView& input,
                               std::size_t groups, std::size_t group, bool rounded) const {
    const DType wide = WideDType(dtype_);
    if (wide == dtype_ && !rounded) return nullptr;
    const std::size_t row = group * SizeOf(wide);
    std::unique_ptr<char[]> copy(new char[groups * row]);
    SplitRows(context, groups, group, groups, [&](std::size_t first, std::size_t count) {
      char* const to = copy.get() + first * row;
      widen_(static_cast<const char*>(input.data) + first * group * SizeOf(dtype_), count * group,
             to);
      if (rounded && wide == DType::kFloat64) {
        RoundGroups(reinterpret_cast<double*>(to), count, group);
      } else if (rounded) {
        RoundGroups(reinterpret_cast<float*>(to), count, group);
      }
    });
    return copy;
  }

  Checker check_;
  DType dtype_;
  FewBitsInputs inputs_;  // the constants that are packed
  bool rounds_;
  WidenKernel widen_;
  FewBitsProduct product_;
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
