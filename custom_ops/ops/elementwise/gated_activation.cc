#include "ops/elementwise/gated_activation.h"

#include "ops/row_split.h"
#include "ops/schema.h"

namespace coreai {

namespace {

constexpr std::size_t kGate = schema::swiglu::kGateInput;
constexpr std::size_t kUp = schema::swiglu::kUpInput;
static_assert(kGate == std::size_t{schema::geglu::kGateInput} &&
                  kUp == std::size_t{schema::geglu::kUpInput},
              "the declarations changed");

}  // namespace

void GatedActivationOp::Compute(const KernelContext& context) const {
  const TensorView gate = context.Input(kGate);
  const TensorView up = context.Input(kUp);
  check_.Require("gate", gate, dtype_);
  check_.Require("up", up, dtype_);
  if (gate.shape != up.shape) {
    check_.Fail("input up of shape " + ToString(up.shape) + " must have the shape " +
                ToString(gate.shape) + " of gate");
  }
  auto* output = static_cast<char*>(context.Output(0, gate.shape));
  const std::size_t elements = ElementCount(gate.shape);
  SplitRows(context, elements, 1, elements, [&](std::size_t first, std::size_t count) {
    const std::size_t offset = first * SizeOf(dtype_);
    GatedActivation part;
    part.gate = static_cast<const char*>(gate.data) + offset;
    part.up = static_cast<const char*>(up.data) + offset;
    part.output = output + offset;
    part.count = count;
    kernel_(part);
  });
}

}  // namespace coreai
