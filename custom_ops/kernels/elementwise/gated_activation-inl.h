// Included once per target by gated_activation.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATED_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATED_ACTIVATION_INL_H_
#undef COREAI_KERNELS_GATED_ACTIVATION_INL_H_
#else
#define COREAI_KERNELS_GATED_ACTIVATION_INL_H_
#endif

#include "kernels/elementwise/activations-inl.h"
#include "kernels/elementwise/gated_activation.h"
#include "simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

template <class Act, typename T>
void Activate(const GatedActivation& a) {
  const hn::ScalableTag<Wide<T>> d;
  const size_t lanes = hn::Lanes(d);
  const auto* gate = static_cast<const T*>(a.gate);
  const auto* up = static_cast<const T*>(a.up);
  auto* out = static_cast<T*>(a.output);
  const Act act;
  size_t i = 0;
  for (; i + lanes <= a.count; i += lanes) {
    StoreNarrow(hn::Mul(act(d, LoadWide(d, gate + i)), LoadWide(d, up + i)), d, out + i);
  }
  if (const size_t n = a.count - i; n != 0) {
    StoreNarrowN(hn::Mul(act(d, LoadWideN(d, gate + i, n)), LoadWideN(d, up + i, n)), d, out + i,
                 n);
  }
}

template <class Act>
GatedActivationKernel SelectActivate(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return Activate<Act, float>;
    case DType::kFloat16:
      return Activate<Act, hwy::float16_t>;
    case DType::kBFloat16:
      return Activate<Act, hwy::bfloat16_t>;
    case DType::kFloat64:
      return Activate<Act, double>;
  }
  return nullptr;
}

inline GatedActivationKernel SelectGatedActivation(DType dtype, Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return SelectActivate<Silu>(dtype);
    case Activation::kGelu:
      return SelectActivate<Gelu>(dtype);
    case Activation::kGeluTanh:
      return SelectActivate<GeluTanh>(dtype);
    case Activation::kNone:
      break;
  }
  return nullptr;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
