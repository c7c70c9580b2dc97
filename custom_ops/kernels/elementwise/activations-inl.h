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

struct Logistic {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return Sigmoid(d, x);
  }
};

/// x + x^3 p(x^2) below 0.625, and (1 - e^-2x) / (1 + e^-2x) above (Moshier 1992, Cephes, tanhf.c;
/// in double p is a quotient of polynomials, tanh.c).
struct Tanh {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    using W = hn::TFromD<D>;
    const V one = hn::Set(d, W{1});
    const V size = hn::Abs(x), square = hn::Mul(x, x);
    const V e = ExpNonPositive(d, hn::Mul(size, hn::Set(d, W{-2})));
    const V large = hn::CopySign(hn::Div(hn::Sub(one, e), hn::Add(one, e)), x);
    const V small = hn::MulAdd(hn::Mul(x, square), Polynomial(d, square), x);
    return hn::IfThenElse(hn::Lt(size, hn::Set(d, static_cast<W>(0.625))), small, large);
  }

 private:
  template <class D, class V, HWY_IF_F32_D(D)>
  static HWY_INLINE V Polynomial(D d, V square) {
    V p = hn::MulAdd(hn::Set(d, -5.70498872745e-3f), square, hn::Set(d, 2.06390887954e-2f));
    p = hn::MulAdd(p, square, hn::Set(d, -5.37397155531e-2f));
    p = hn::MulAdd(p, square, hn::Set(d, 1.33314422036e-1f));
    return hn::MulAdd(p, square, hn::Set(d, -3.33332819422e-1f));
  }

  template <class D, class V, HWY_IF_F64_D(D)>
  static HWY_INLINE V Polynomial(D d, V square) {
    V p = hn::MulAdd(hn::Set(d, -9.64399179425052238628e-1), square,
                     hn::Set(d, -9.92877231001918586564e1));
    p = hn::MulAdd(p, square, hn::Set(d, -1.61468768441708447952e3));
    V q = hn::Add(square, hn::Set(d, 1.12811678491632931402e2));
    q = hn::MulAdd(q, square, hn::Set(d, 2.23548839060100448583e3));
    return hn::Div(p, hn::MulAdd(q, square, hn::Set(d, 4.84406305325125486048e3)));
  }
};

/// The square of e^(x / 2) for positive x: powers of two up to the largest have no exponent there.
struct Exp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    using W = hn::TFromD<D>;
    const V most = hn::Set(d, W{sizeof(W) == 4 ? 80 : 400});  // its square is infinite
    const V half = hn::Mul(x, hn::Set(d, static_cast<W>(0.5)));
    const V bounded = hn::IfThenElse(hn::Gt(half, most), most, half);  // half if it is NaN
    const auto positive = hn::Gt(x, hn::Zero(d));
    const V e = ExpNonPositive(d, hn::IfThenElse(positive, bounded, x));
    return hn::IfThenElse(positive, hn::Mul(e, e), e);
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
