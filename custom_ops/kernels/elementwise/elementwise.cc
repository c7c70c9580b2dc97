#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/elementwise.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/elementwise/add_bias-inl.h"
#include "kernels/elementwise/gated_activation-inl.h"

#if HWY_ONCE
#include "simd/dispatch.h"

namespace coreai {

AddBiasKernel FindAddBias(Target target, DType dtype, Activation activation) {
  return COREAI_FOR(target, SelectAddBias)(dtype, activation);
}

GatedActivationKernel FindGatedActivation(Target target, DType dtype, Activation activation) {
  return COREAI_FOR(target, SelectGatedActivation)(dtype, activation);
}

}  // namespace coreai
#endif
