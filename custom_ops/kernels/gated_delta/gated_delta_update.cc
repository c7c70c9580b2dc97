#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gated_delta/gated_delta_update.cc"
#include "hwy/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/gated_delta/gated_delta_update-inl.h"

#if HWY_ONCE
#include "simd/dispatch.h"

namespace coreai {

GatedDeltaKernel FindGatedDelta(Target target, DType dtype) {
  static constexpr GatedDeltaKernel (*kSelect[kTargetCount])(DType) =
      COREAI_TARGETS_WITH_AMX(SelectGatedDelta, SelectGatedDeltaOfAmx);
  return kSelect[static_cast<std::size_t>(target)](dtype);
}

}  // namespace coreai
#endif
