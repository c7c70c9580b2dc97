#include "kernels/gated_delta/gated_delta_plan.h"

namespace coreai {

std::size_t GatedDeltaItems(const GatedDeltaProblem& a) {
  return a.batch * a.value_heads * ((a.value_dim + kItemColumns - 1) / kItemColumns);
}

std::size_t GatedDeltaScratchBytes(const GatedDeltaProblem& a, DType dtype) {
  if (dtype == DType::kFloat64) return GatedDeltaScratch<double>(a, nullptr).bytes;
  const std::size_t bytes = GatedDeltaScratch<float>(a, nullptr).bytes;
  if (dtype == DType::kFloat32 || a.length < kMinTileTokens || a.steps) return bytes;
  return std::max(bytes, GatedDeltaTileScratch(a, PartsOf(dtype), nullptr).bytes);
}

}  // namespace coreai
