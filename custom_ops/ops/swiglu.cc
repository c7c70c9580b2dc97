#include "ops/gated_activation.h"
#include "ops/op_list.h"

namespace coreai {
namespace {

namespace names = schema::swiglu;
static_assert(names::kInputCount == 2 && names::kAttributeCount == 0, "the declaration changed");

class SwigluOp : public Op {
 public:
  SwigluOp(const KernelInfo& info, DType dtype, Target target)
      : check_(info.op()),
        dtype_(dtype),
        kernel_(FindGatedActivation(target, dtype, Activation::kSilu)) {}

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

const OpDefinition kSwigluOp = Define<SwigluOp>(names::kComposite, ShapeOfFirstInput).InPlace();

}  // namespace coreai
