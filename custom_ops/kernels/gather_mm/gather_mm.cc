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
      COREAI_TARGETS(SelectGatherMm);
  return kSelect[static_cast<std::size_t>(target)](dtype, layout);
}

GatherMmPackLeftKernel FindGatherMmPackLeft(Target target, DType wide) {
  static constexpr GatherMmPackLeftKernel (*kSelect[kTargetCount])(DType) =
      COREAI_TARGETS(SelectGatherMmPackLeft);
  return kSelect[static_cast<std::size_t>(target)](wide);
}

GatherMmPackRightKernel FindGatherMmPackRight(Target target, DType dtype, bool transposed) {
  static constexpr GatherMmPackRightKernel (*kSelect[kTargetCount])(DType, bool) =
      COREAI_TARGETS(SelectGatherMmPackRight);
  return kSelect[static_cast<std::size_t>(target)](dtype, transposed);
}

}  // namespace coreai
#endif
