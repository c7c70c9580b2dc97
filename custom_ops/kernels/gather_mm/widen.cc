#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gather_mm/widen.cc"
#include "hwy/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/gather_mm/widen-inl.h"

#if HWY_ONCE
#include "simd/dispatch.h"

namespace coreai {

WidenKernel FindWiden(Target target, DType dtype) {
  static constexpr WidenKernel (*kSelect[kTargetCount])(DType) = COREAI_TARGETS(SelectWiden);
  return kSelect[static_cast<std::size_t>(target)](dtype);
}

}  // namespace coreai
#endif
