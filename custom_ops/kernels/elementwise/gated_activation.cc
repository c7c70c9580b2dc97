#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/gated_activation.cc"
#include "hwy/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/elementwise/gated_activation-inl.h"

#if HWY_ONCE
#include "simd/dispatch.h"

namespace coreai {

GatedActivationKernel FindGatedActivation(Target target, DType dtype, Activation activation) {
  static constexpr GatedActivationKernel (*kSelect[kTargetCount])(DType, Activation) =
      COREAI_TARGETS(SelectGatedActivation);
  return kSelect[static_cast<std::size_t>(target)](dtype, activation);
}

}  // namespace coreai
#endif
