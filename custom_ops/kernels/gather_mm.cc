#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gather_mm.cc"
#include "hwy/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/gather_mm-inl.h"

#if HWY_ONCE
#include "simd/dispatch.h"

namespace coreai {

GatherMmKernel FindGatherMm(Target target, DType dtype, bool transposed) {
  static constexpr GatherMmKernel (*kSelect[kTargetCount])(DType, bool) =
      COREAI_TARGETS(SelectGatherMm);
  return kSelect[static_cast<std::size_t>(target)](dtype, transposed);
}

GatherMmPackKernel FindGatherMmPack(Target target, DType wide) {
  static constexpr GatherMmPackKernel (*kSelect[kTargetCount])(DType) =
      COREAI_TARGETS(SelectGatherMmPack);
  return kSelect[static_cast<std::size_t>(target)](wide);
}

}  // namespace coreai
#endif
