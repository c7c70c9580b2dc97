#include "ops/gated_activation.h"

#include "ops/row_split.h"

namespace coreai {

void RunGatedActivation(const Checker& check, const KernelContext& context, DType dtype,
                        GatedActivationKernel kernel, const TensorView& gate,
                        const TensorView& up) {
  check.Require("gate", gate, dtype);
  check.Require("up", up, dtype);
  if (gate.shape != up.shape) {
    check.Fail("input up of shape " + ToString(up.shape) + " must have the shape " +
               ToString(gate.shape) + " of gate");
  }
  auto* output = static_cast<char*>(context.Output(0, gate.shape));
  const std::size_t elements = ElementCount(gate.shape);
  SplitRows(context, elements, 1, elements, [&](std::size_t first, std::size_t count) {
    const std::size_t offset = first * SizeOf(dtype);
    kernel({static_cast<const char*>(gate.data) + offset,
            static_cast<const char*>(up.data) + offset, output + offset, count});
  });
}

}  // namespace coreai
