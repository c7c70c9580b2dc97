#include <string>

#include "ops/gated_activation.h"
#include "ops/op_list.h"

namespace coreai {
namespace {

namespace names = schema::geglu;
static_assert(names::kInputCount == 2 && names::kAttributeCount == 1, "the declaration changed");

Activation ReadActivation(const Checker& check, const KernelInfo& info) {
  const std::string approximate = info.String(names::kApproximate, names::kApproximateDefault);
  if (approximate == "tanh") return Activation::kGeluTanh;
  if (approximate != "none") {
    check.Fail("attribute approximate is \"" + approximate + "\", expected \"none\" or \"tanh\"");
  }
  return Activation::kGelu;
}

class GegluOp : public Op {
 public:
  GegluOp(const KernelInfo& info, DType dtype, Target target)
      : check_(info.op()),
        dtype_(dtype),
        kernel_(FindGatedActivation(target, dtype, ReadActivation(check_, info))) {}

  void Compute(const KernelContext& context) const override {
    RunGatedActivation(check_, context, dtype_, kernel_, context.Input(names::kGateInput),
                       context.Input(names::kUpInput));
  }

 private:
  Checker check_;
  DType dtype_;
  GatedActivationKernel kernel_;
};

}  // namespace

const OpDefinition kGegluOp = Define<GegluOp>(names::kComposite, ShapeOfFirstInput).InPlace();

}  // namespace coreai
