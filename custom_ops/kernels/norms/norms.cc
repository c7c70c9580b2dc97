#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norms/norms.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/norms/group_norm-inl.h"
#include "kernels/norms/layer_norm-inl.h"
#include "kernels/norms/residual_add-inl.h"
#include "kernels/norms/rms_norm-inl.h"
#include "kernels/norms/softmax-inl.h"

#if HWY_ONCE
#include "simd/dispatch.h"

namespace coreai {

GroupNormKernel FindGroupNorm(Target target, DType dtype) {
  return COREAI_FOR(target, SelectGroupNorm)(dtype);
}

LayerNormKernel FindLayerNorm(Target target, DType dtype, bool wide_affine) {
  return COREAI_FOR(target, SelectLayerNorm)(dtype, wide_affine);
}

ResidualAddKernel FindResidualAdd(Target target, DType dtype) {
  return COREAI_FOR(target, SelectResidualAdd)(dtype);
}

RmsNormKernel FindRmsNorm(Target target, DType dtype, bool wide_scale) {
  return COREAI_FOR(target, SelectRmsNorm)(dtype, wide_scale);
}

SoftmaxKernel FindSoftmax(Target target, DType dtype) {
  return COREAI_FOR(target, SelectSoftmax)(dtype);
}

}  // namespace coreai
#endif
