// Exponential of non-positive numbers, for softmax. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_SIMD_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_SIMD_EXP_INL_H_
#undef COREAI_SIMD_EXP_INL_H_
#else
#define COREAI_SIMD_EXP_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename W>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  static constexpr float kLowest = -88.0296919f;  // -127 ln 2
  static constexpr float kLog2e = 1.44269504088896341f;
  // 1.5 * 2^23 + 127: adding it leaves the nearest integer, biased as an exponent, in the low bits.
  static constexpr float kRounder = 12583039.0f;
  // ln 2 in two parts; the first has enough zero bits that n * kLn2High is exact.
  static constexpr float kLn2High = 0.693145751953125f;
  static constexpr float kLn2Low = 1.42860682030941723e-6f;
  static constexpr int kFractionBits = 23;
  static constexpr int kBias = 127;
};

template <>
struct ExpConstants<double> {
  static constexpr double kLowest = -709.0895657128241;  // -1023 ln 2
  static constexpr double kLog2e = 1.44269504088896340736;
  static constexpr double kRounder = 6755399441056767.0;  // 1.5 * 2^52 + 1023
  static constexpr double kLn2High = 6.93147180369123816490e-01;
  static constexpr double kLn2Low = 1.90821492927058770002e-10;
  static constexpr int kFractionBits = 52;
};

// e^r for |r| <= ln(2) / 2. In float: 1 + r + r^2 q(r), where q is the polynomial of degree 4 from
// least squares reweighted toward the largest relative error (Lawson 1961); the error is 4e-9. In
// double: Taylor's polynomial; the remainder r^14 / 14! is 4e-18. Both are below a tenth of the
// last place. In float the terms are paired (Estrin 1960), which halves the chain of dependent
// steps.
template <class D, class V, HWY_IF_F32_D(D)>
HWY_INLINE V ExpPolynomial(D d, V r) {
  const V r2 = hn::Mul(r, r);
  const V p01 = hn::Add(r, hn::Set(d, 1.0f));
  const V q01 = hn::MulAdd(r, hn::Set(d, 0.166665211f), hn::Set(d, 0.49999994f));
  const V q23 = hn::MulAdd(r, hn::Set(d, 0.00836874545f), hn::Set(d, 0.041668389f));
  const V q24 = hn::MulAdd(r2, hn::Set(d, 0.00138145406f), q23);
  return hn::MulAdd(hn::MulAdd(q24, r2, q01), r2, p01);
}

template <class D, class V, HWY_IF_F64_D(D)>
HWY_INLINE V ExpPolynomial(D d, V r) {
  V p = hn::Set(d, 1.0 / 6227020800.0);
  p = hn::MulAdd(p, r, hn::Set(d, 1.0 / 479001600.0));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0 / 39916800.0));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0 / 3628800.0));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0 / 362880.0));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0 / 40320.0));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0 / 5040.0));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0 / 720.0));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0 / 120.0));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0 / 24.0));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0 / 6.0));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0));
  return hn::MulAdd(p, r, hn::Set(d, 1.0));
}

/// e^x for x <= 0 (or slightly above, up to 80), within 2 units in the last place down to the
/// logarithm of the least normal number. From half a binary order below that on, -inf included, the
/// result is zero. NaN for NaN.
///
/// Cody & Waite, "Software Manual for the Elementary Functions", 1980, ch. 6: x = n ln 2 + r, then
/// e^x = 2^n e^r. For the least n, 2^n is zero.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpNonPositive(D d, V x) {
  using W = hn::TFromD<D>;
  using C = ExpConstants<W>;
  const hn::RebindToSigned<D> di;
  const V lowest = hn::Set(d, C::kLowest);
#if HWY_TARGET != HWY_SCALAR && HWY_ARCH_X86
  const V clamped = hn::Max(lowest, x);  // returns the second operand if one is NaN
#else
  const V clamped = hn::IfThenElse(hn::Lt(x, lowest), lowest, x);
#endif
  const V rounder = hn::Set(d, C::kRounder);
  const V shifted = hn::MulAdd(clamped, hn::Set(d, C::kLog2e), rounder);
  const V n = hn::Sub(shifted, rounder);
  V r = hn::NegMulAdd(n, hn::Set(d, C::kLn2High), clamped);
  r = hn::NegMulAdd(n, hn::Set(d, C::kLn2Low), r);
  const V power = hn::BitCast(d, hn::ShiftLeft<C::kFractionBits>(hn::BitCast(di, shifted)));
  return hn::Mul(ExpPolynomial(d, r), power);
}

/// 2^x for x <= 0 (or slightly above), with a relative error below 3e-6, which is enough for a
/// result that is rounded to 16 bits. Exact for integers, zero below the exponents of normal
/// numbers and for -inf, NaN for NaN.
///
/// x = n + r with 0 <= r < 1, then 2^x = 2^n 2^r. The polynomial is fitted as that of
/// ExpPolynomial, with the constant term 1.
template <class D, class V = hn::Vec<D>, HWY_IF_F32_D(D)>
HWY_INLINE V Exp2NonPositive(D d, V x) {
  const auto polynomial = [&](V r) HWY_ATTR {
    V p = hn::MulAdd(r, hn::Set(d, 0.01342669f), hn::Set(d, 0.05224247f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.24128021f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.69304484f));
    return hn::MulAdd(p, r, hn::Set(d, 1.0f));
  };
#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3
  // x minus its floor, without an exception for inexact results. It is 0 for -inf.
  const V r{_mm512_reduce_ps(x.raw, 0x9)};
  return V{_mm512_scalef_ps(polynomial(r).raw, x.raw)};
#else
  const hn::RebindToSigned<D> di;
  constexpr int kBias = ExpConstants<float>::kBias;
  const V least = hn::Set(d, -static_cast<float>(kBias));
  const V clamped = hn::IfThenElse(hn::Lt(x, least), least, x);
  const V n = hn::Floor(clamped);
  const auto exponent = hn::Add(hn::ConvertTo(di, n), hn::Set(di, kBias));
  const V power = hn::BitCast(d, hn::ShiftLeft<ExpConstants<float>::kFractionBits>(exponent));
  const V result = hn::Mul(polynomial(hn::Sub(clamped, n)), power);
  return hn::IfThenElse(hn::IsNaN(x), x, result);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
