#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/rope.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/attention/rope-inl.h"

#if HWY_ONCE
#include "simd/dispatch.h"

namespace coreai {

RopeKernel FindRope(Target target, DType dtype, bool wide_table, bool interleaved) {
  return COREAI_FOR(target, SelectRope)(dtype, wide_table, interleaved);
}

RopeAnglesKernel FindRopeAngles(Target target, DType wide) {
  return COREAI_FOR(target, SelectRopeAngles)(wide);
}

}  // namespace coreai
#endif
