#include "ops/op_list.h"

namespace coreai {

OpList AllOps() {
#define COREAI_ADDRESS(name) &name,
  static const OpDefinition* const kOps[] = {COREAI_EACH_OP(COREAI_ADDRESS)};
#undef COREAI_ADDRESS
  return {schema::kDomain, kOps, sizeof(kOps) / sizeof(kOps[0])};
}

void ShapeOfFirstInput(const ShapeInference& shapes) {
  const SymbolicShape input = shapes.Input(0);
  if (input.rank() != 0) shapes.SetOutput(0, input);
}

void ShapesOfFirstInput(const ShapeInference& shapes) {
  const SymbolicShape input = shapes.Input(0);
  if (input.rank() == 0) return;
  shapes.SetOutput(0, input);
  shapes.SetOutput(1, input);
}

void NoShape(const ShapeInference&) {}

}  // namespace coreai
