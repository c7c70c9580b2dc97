#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gated_delta/gated_delta_update.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/gated_delta/gated_delta_update-inl.h"

#if HWY_ONCE
#include "simd/dispatch.h"

namespace coreai {

GatedDeltaKernel FindGatedDelta(Target target, DType dtype) {
  return COREAI_FOR_WITH_AMX(target, SelectGatedDelta, SelectGatedDeltaOfAmx)(dtype);
}

}  // namespace coreai
#endif
