#include "ops/elementwise/gated_activation.h"
#include "ops/op_list.h"

namespace coreai {
namespace {

namespace names = schema::swiglu;
static_assert(names::kInputCount == 2 && names::kAttributeCount == 0, "the declaration changed");

class SwigluOp : public GatedActivationOp {
 public:
  SwigluOp(const KernelInfo& info, DType dtype, Target target)
      : GatedActivationOp(Checker(info.op()), dtype,
                          FindGatedActivation(target, dtype, Activation::kSilu)) {}
};

}  // namespace

const OpDefinition kSwigluOp = Define<SwigluOp>(names::kComposite, ShapeOfFirstInput).InPlace();

}  // namespace coreai
