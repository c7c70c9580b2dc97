#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norms/residual_add.cc"
#include "hwy/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/norms/residual_add-inl.h"

#if HWY_ONCE
#include "simd/dispatch.h"

namespace coreai {

ResidualAddKernel FindResidualAdd(Target target, DType dtype) {
  static constexpr ResidualAddKernel (*kSelect[kTargetCount])(DType) =
      COREAI_TARGETS(SelectResidualAdd);
  return kSelect[static_cast<std::size_t>(target)](dtype);
}

}  // namespace coreai
#endif
