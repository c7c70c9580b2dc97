#include "kernels/elementwise/add_bias.h"

#include <string>
#include <utility>

#include "ops/checks.h"
#include "ops/op_list.h"
#include "ops/row_split.h"

namespace coreai {
namespace {

namespace names = schema::add_bias;
static_assert(names::kInputCount == 2 && names::kAttributeCount == 1, "the declaration changed");

Activation ReadActivation(const Checker& check, const KernelInfo& info) {
  static const std::pair<const char*, Activation> kKinds[] = {
      {"none", Activation::kNone}, {"silu", Activation::kSilu},
      {"gelu", Activation::kGelu}, {"gelu_tanh", Activation::kGeluTanh},
      {"tanh", Activation::kTanh}, {"sigmoid", Activation::kSigmoid},
      {"exp", Activation::kExp}};
  const std::string name = info.String(names::kActivation, names::kActivationDefault);
  std::string known;
  for (const auto& [word, kind] : kKinds) {
    if (name == word) return kind;
    known += std::string(known.empty() ? "\"" : ", \"") + word + "\"";
  }
  check.Fail("attribute activation is \"" + name + "\", expected one of " + known);
}

class AddBiasOp : public Op {
 public:
  AddBiasOp(const KernelInfo& info, DType dtype, Target target)
      : check_(info.op()),
        dtype_(dtype),
        kernel_(FindAddBias(target, dtype, ReadActivation(check_, info))) {}

  void Compute(const KernelContext& context) const override {
    const TensorView input = context.Input(names::kInputInput);
    const TensorView bias = context.Input(names::kBiasInput);
    check_.Require("input", input, dtype_);
    check_.Require("bias", bias, dtype_);
    if (input.shape.empty() || bias.shape != Shape{input.shape.back()}) {
      check_.Fail("input bias of shape " + ToString(bias.shape) +
                  " must have the size of the last axis of input, of shape " +
                  ToString(input.shape));
    }
    auto* output = static_cast<char*>(context.Output(0, input.shape));
    const std::size_t elements = ElementCount(input.shape);
    if (elements == 0) return;
    const std::size_t columns = ElementCount(bias.shape), rows = elements / columns;
    SplitRows(context, rows, columns, rows, [&](std::size_t first, std::size_t count) {
      const std::size_t offset = first * columns * SizeOf(dtype_);
      kernel_({static_cast<const char*>(input.data) + offset, bias.data, output + offset, count,
               columns});
    });
  }

 private:
  Checker check_;
  DType dtype_;
  AddBiasKernel kernel_;
};

}  // namespace

const OpDefinition kAddBiasOp = Define<AddBiasOp>(names::kComposite, ShapeOfFirstInput).InPlace();

}  // namespace coreai
