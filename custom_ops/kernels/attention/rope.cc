#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/rope.cc"
#include "hwy/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/attention/rope-inl.h"

#if HWY_ONCE
#include "simd/dispatch.h"

namespace coreai {

RopeKernel FindRope(Target target, DType dtype, bool wide_table, bool interleaved) {
  static constexpr RopeKernel (*kSelect[kTargetCount])(DType, bool, bool) =
      COREAI_TARGETS(SelectRope);
  return kSelect[static_cast<std::size_t>(target)](dtype, wide_table, interleaved);
}

RopeAnglesKernel FindRopeAngles(Target target, DType wide) {
  static constexpr RopeAnglesKernel (*kSelect[kTargetCount])(DType) =
      COREAI_TARGETS(SelectRopeAngles);
  return kSelect[static_cast<std::size_t>(target)](wide);
}

}  // namespace coreai
#endif
