#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gather_mm/gather_mm.cc"
#include "hwy/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/gather_mm/gather_mm-inl.h"

#if HWY_ONCE
#include "simd/dispatch.h"

namespace coreai {

GatherMmKernel FindGatherMm(Target target, DType dtype, GatherMmLayout layout) {
  static constexpr GatherMmKernel (*kSelect[kTargetCount])(DType, GatherMmLayout) =
      COREAI_TARGETS_WITH_AMX(SelectGatherMm, SelectGatherMmOfAmx);
  return kSelect[static_cast<std::size_t>(target)](dtype, layout);
}

GatherMmPackLeftKernel FindGatherMmPackLeft(Target target, DType left) {
  static constexpr GatherMmPackLeftKernel (*kSelect[kTargetCount])(DType) =
      COREAI_TARGETS(SelectGatherMmPackLeft);
  return kSelect[static_cast<std::size_t>(target)](left);
}

GatherMmPackRightKernel FindGatherMmPackRight(Target target, DType dtype, bool transposed) {
  static constexpr GatherMmPackRightKernel (*kSelect[kTargetCount])(DType, bool) =
      COREAI_TARGETS_WITH_AMX(SelectGatherMmPackRight, SelectGatherMmPackRightOfAmx);
  return kSelect[static_cast<std::size_t>(target)](dtype, transposed);
}

GatherMmLeft GatherMmLeftOf(Target target, DType dtype) {
#ifdef COREAI_MODEL_TILES
  (void)target;
  const bool tiles = dtype == DType::kBFloat16;
#else
  const bool tiles = target == Target::kAmx && dtype == DType::kBFloat16;
#endif
  if (tiles) return {dtype, 0, 16, 32};
  return {WideDType(dtype), kGatherMmFewRows, 1, 1};
}

std::size_t GatherMmPackedBytes(Target target, DType dtype, std::size_t depth,
                                std::size_t columns) {
  const std::size_t step = GatherMmLeftOf(target, dtype).depth_step;
  return (depth + step - 1) / step * step * GatherMmPackedColumns(columns) * SizeOf(dtype);
}

}  // namespace coreai
#endif
