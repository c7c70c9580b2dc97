// Included once per target by elementwise.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATED_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATED_ACTIVATION_INL_H_
#undef COREAI_KERNELS_GATED_ACTIVATION_INL_H_
#else
#define COREAI_KERNELS_GATED_ACTIVATION_INL_H_
#endif

#include "kernels/elementwise/activations-inl.h"
#include "kernels/elementwise/gated_activation.h"
#include "kernels/select-inl.h"
#include "simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

template <class Act, typename T>
void Activate(const GatedActivation& a) {
  const hn::ScalableTag<Wide<T>> d;
  const auto* gate = static_cast<const T*>(a.gate);
  const auto* up = static_cast<const T*>(a.up);
  auto* out = static_cast<T*>(a.output);
  const Act act;
  ForEachVector(d, a.count, [&](size_t i, auto lanes) COREAI_INLINE_LAMBDA {
    lanes.Store(hn::Mul(act(d, lanes.Load(d, gate + i)), lanes.Load(d, up + i)), d, out + i);
  });
}

template <class Act>
GatedActivationKernel SelectActivate(DType dtype) {
  return SelectByDType(
      dtype, [](auto zero) -> GatedActivationKernel { return Activate<Act, decltype(zero)>; });
}

inline GatedActivationKernel SelectGatedActivation(DType dtype, Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return SelectActivate<Silu>(dtype);
    case Activation::kGelu:
      return SelectActivate<Gelu>(dtype);
    case Activation::kGeluTanh:
      return SelectActivate<GeluTanh>(dtype);
    default:  // those of add_bias alone
      break;
  }
  return nullptr;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
