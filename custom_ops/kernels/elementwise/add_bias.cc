#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/add_bias.cc"
#include "hwy/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/elementwise/add_bias-inl.h"

#if HWY_ONCE
#include "simd/dispatch.h"

namespace coreai {

AddBiasKernel FindAddBias(Target target, DType dtype, Activation activation) {
  static constexpr AddBiasKernel (*kSelect[kTargetCount])(DType, Activation) =
      COREAI_TARGETS(SelectAddBias);
  return kSelect[static_cast<std::size_t>(target)](dtype, activation);
}

}  // namespace coreai
#endif
