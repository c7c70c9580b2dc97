// Included once per target by gated_activation.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATED_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATED_ACTIVATION_INL_H_
#undef COREAI_KERNELS_GATED_ACTIVATION_INL_H_
#else
#define COREAI_KERNELS_GATED_ACTIVATION_INL_H_
#endif

#include "kernels/elementwise/gated_activation.h"
#include "simd/erfc-inl.h"
#include "simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// 1 / (1 + e^-x), computed from e^-|x|, which cannot overflow.
template <class D, class V>
HWY_INLINE V Sigmoid(D d, V x) {
  const V one = hn::Set(d, hn::TFromD<D>{1});
  const V e = ExpNonPositive(d, hn::Neg(hn::Abs(x)));
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(one, e));
}

struct Silu {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return hn::Mul(x, Sigmoid(d, x));
  }
};

/// x times the cumulative normal distribution, computed from the tail, which is accurate for
/// negative numbers.
struct Gelu {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    using W = hn::TFromD<D>;
    const V z = hn::Mul(hn::Abs(x), hn::Set(d, static_cast<W>(0.70710678118654752440L)));
    const V tail = hn::Mul(hn::Set(d, static_cast<W>(0.5)), ErfcNonNegative(d, z));
    const V one = hn::Set(d, W{1});
    return hn::Mul(x, hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail)));
  }
};

/// (1 + tanh(y)) / 2 is the sigmoid of 2y.
struct GeluTanh {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    using W = hn::TFromD<D>;
    // 2 sqrt(2 / pi), and that times 0.044715
    const V linear = hn::Set(d, static_cast<W>(1.59576912160573071176L));
    const V cubic = hn::Set(d, static_cast<W>(0.07135481627260024878L));
    const V y = hn::Mul(x, hn::MulAdd(hn::Mul(x, x), cubic, linear));
    return hn::Mul(x, Sigmoid(d, y));
  }
};

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
  }
  return nullptr;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
