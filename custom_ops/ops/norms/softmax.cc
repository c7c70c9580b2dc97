#include "kernels/norms/softmax.h"

#include "ops/checks.h"
#include "ops/op_list.h"
#include "ops/row_split.h"

namespace coreai {
namespace {

namespace names = schema::softmax;
static_assert(names::kInputCount == 1 && names::kAttributeCount == 0, "the declaration changed");

class SoftmaxOp : public Op {
 public:
  SoftmaxOp(const KernelInfo& info, DType dtype, Target target)
      : check_(info.op()), dtype_(dtype), kernel_(FindSoftmax(target, dtype)) {}

  void Compute(const KernelContext& context) const override {
    const TensorView input = context.Input(names::kInputInput);
    check_.Require("input", input, dtype_);
    if (input.shape.empty()) check_.Fail("input of shape [] must have rank 1 at least");
    auto* output = static_cast<char*>(context.Output(0, input.shape));
    if (ElementCount(input.shape) == 0) return;
    const std::size_t size = static_cast<std::size_t>(input.shape.back());
    const std::size_t rows = ElementCount(input.shape) / size;
    SplitRows(context, rows, size, rows, [&](std::size_t first, std::size_t count) {
      const std::size_t offset = first * size * SizeOf(dtype_);
      kernel_({static_cast<const char*>(input.data) + offset, output + offset, count, size});
    });
  }

 private:
  Checker check_;
  DType dtype_;
  SoftmaxKernel kernel_;
};

}  // namespace

const OpDefinition kSoftmaxOp = Define<SoftmaxOp>(names::kComposite, ShapeOfFirstInput).InPlace();

}  // namespace coreai
