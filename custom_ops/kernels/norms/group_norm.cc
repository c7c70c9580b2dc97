#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norms/group_norm.cc"
#include "hwy/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/norms/group_norm-inl.h"

#if HWY_ONCE
#include "simd/dispatch.h"

namespace coreai {

GroupNormKernel FindGroupNorm(Target target, DType dtype) {
  static constexpr GroupNormKernel (*kSelect[kTargetCount])(DType) =
      COREAI_TARGETS(SelectGroupNorm);
  return kSelect[static_cast<std::size_t>(target)](dtype);
}

}  // namespace coreai
#endif
