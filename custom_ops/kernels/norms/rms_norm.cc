#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norms/rms_norm.cc"
#include "hwy/foreach_target.h"
// clang-format: foreach_target comes first
#include "hwy/highway.h"
#include "kernels/norms/rms_norm-inl.h"

#if HWY_ONCE
#include "simd/dispatch.h"

namespace coreai {

RmsNormKernel FindRmsNorm(Target target, DType dtype, bool wide_scale) {
  static constexpr RmsNormKernel (*kSelect[kTargetCount])(DType, bool) =
      COREAI_TARGETS(SelectRmsNorm);
  return kSelect[static_cast<std::size_t>(target)](dtype, wide_scale);
}

}  // namespace coreai
#endif
