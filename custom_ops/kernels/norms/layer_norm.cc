#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norms/layer_norm.cc"
#include "hwy/foreach_target.h"
// clang-format: foreach_target comes first
#include "hwy/highway.h"
#include "kernels/norms/layer_norm-inl.h"

#if HWY_ONCE
#include "simd/dispatch.h"

namespace coreai {

LayerNormKernel FindLayerNorm(Target target, DType dtype, bool wide_affine) {
  static constexpr LayerNormKernel (*kSelect[kTargetCount])(DType, bool) =
      COREAI_TARGETS(SelectLayerNorm);
  return kSelect[static_cast<std::size_t>(target)](dtype, wide_affine);
}

}  // namespace coreai
#endif
