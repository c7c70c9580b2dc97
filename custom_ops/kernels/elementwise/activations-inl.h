// Activations of a vector. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_ACTIVATIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_ACTIVATIONS_INL_H_
#undef COREAI_KERNELS_ACTIVATIONS_INL_H_
#else
#define COREAI_KERNELS_ACTIVATIONS_INL_H_
#endif

#include "simd/erfc-inl.h"

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

struct NoActivation {
  template <class D, class V>
  HWY_INLINE V operator()(D, V x) const {
    return x;
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
