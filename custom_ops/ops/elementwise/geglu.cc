#include <string>

#include "ops/elementwise/gated_activation.h"
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

class GegluOp : public GatedActivationOp {
 public:
  GegluOp(const KernelInfo& info, DType dtype, Target target)
      : GegluOp(Checker(info.op()), info, dtype, target) {}

 private:
  GegluOp(const Checker& check, const KernelInfo& info, DType dtype, Target target)
      : GatedActivationOp(check, dtype,
                          FindGatedActivation(target, dtype, ReadActivation(check, info))) {}
};

}  // namespace

const OpDefinition kGegluOp = Define<GegluOp>(names::kComposite, ShapeOfFirstInput).InPlace();

}  // namespace coreai
