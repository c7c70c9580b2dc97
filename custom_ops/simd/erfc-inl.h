// Complementary error function. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_SIMD_ERFC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_SIMD_ERFC_INL_H_
#undef COREAI_SIMD_ERFC_INL_H_
#else
#define COREAI_SIMD_ERFC_INL_H_
#endif

#include "simd/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

// Polynomials in s = 2t - 1 that interpolate erfc(z) e^(z^2) / t at Chebyshev points, where
// t = 1 / (1 + 0.35 z); highest power first. The form is that of Hastings, "Approximations for
// Digital Computers", 1955, sheet 43; the coefficients were computed with 40 digits. They are off
// by 1.1e-8 and 2.7e-17 of erfc(0).
inline constexpr float kErfc32[] = {
    3.48253188e-06f, 8.0489546e-05f, 2.93753728e-05f, -0.000838427349f,
    -0.00157614827f, 0.00456865098f, 0.0318391263f,   0.0950990326f,
    0.194224589f,    0.302357087f,   0.374212753f,
};
inline constexpr double kErfc64[] = {
    -7.930225942539507e-10, 9.793518478717163e-10,  7.015683337432483e-09,  -1.2506089852167949e-08,
    -3.08378779664915e-08,  9.11945129472572e-08,   8.275775636765018e-08,  -5.320448566992212e-07,
    -6.31545845402619e-08,  2.9409858362081314e-06, -8.953225962016916e-07, -1.7330763355044464e-05,
    5.886273900956323e-06,  0.00011697271703780537, 2.7031128130007024e-05, -0.0008717218383461754,
    -0.0015751382581945526, 0.004582616166243062,   0.03183894746351669,    0.09509659025295786,
    0.19422459742520443,    0.30235720773585073,    0.3742127534229414,
};

template <class D, class V, HWY_IF_F32_D(D)>
HWY_INLINE V ErfcPolynomial(D d, V s) {
  V p = hn::Set(d, kErfc32[0]);
#pragma GCC unroll 16
  for (size_t i = 1; i < sizeof(kErfc32) / sizeof(float); ++i) {
    p = hn::MulAdd(p, s, hn::Set(d, kErfc32[i]));
  }
  return p;
}

template <class D, class V, HWY_IF_F64_D(D)>
HWY_INLINE V ErfcPolynomial(D d, V s) {
  V p = hn::Set(d, kErfc64[0]);
#pragma GCC unroll 32
  for (size_t i = 1; i < sizeof(kErfc64) / sizeof(double); ++i) {
    p = hn::MulAdd(p, s, hn::Set(d, kErfc64[i]));
  }
  return p;
}

/// erfc(z) for z >= 0, infinity included, within 3 units in the last place of 1. NaN for NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ErfcNonNegative(D d, V z) {
  using W = hn::TFromD<D>;
  const V one = hn::Set(d, W{1});
  const V t = hn::Div(one, hn::MulAdd(hn::Set(d, static_cast<W>(0.35L)), z, one));
  const V s = hn::Sub(hn::Add(t, t), one);
  const V e = ExpNonPositive(d, hn::Neg(hn::Mul(z, z)));
  return hn::Mul(hn::Mul(t, ErfcPolynomial(d, s)), e);
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
