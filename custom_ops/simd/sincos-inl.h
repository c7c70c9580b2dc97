// Sine and cosine. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_SIMD_SINCOS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_SIMD_SINCOS_INL_H_
#undef COREAI_SIMD_SINCOS_INL_H_
#else
#define COREAI_SIMD_SINCOS_INL_H_
#endif

#include "simd/sincos.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// sin(x) and cos(x) in double for |x| <= kMaxSinCosArgument, within 2 units in the last place of
/// the larger of the two. The result for other arguments is unspecified.
///
/// Cody & Waite, "Software Manual for the Elementary Functions", 1980, ch. 8: x = n pi/2 + r. Pi/2
/// is split into parts of 27 bits, so that n times a part is exact for n below 2^26, with or
/// without fused multiplication. The Taylor series for |r| <= pi/4 are truncated at a remainder of
/// 3e-19.
template <class D, class V = hn::Vec<D>, HWY_IF_F64_D(D)>
HWY_INLINE void SinCos(D d, V x, V* HWY_RESTRICT sin, V* HWY_RESTRICT cos) {
  const hn::RebindToUnsigned<D> du;
  const V rounder = hn::Set(d, 6755399441055744.0);  // 1.5 * 2^52: the low bits become n
  const V shifted = hn::Add(hn::Mul(x, hn::Set(d, 0.63661977236758134308)), rounder);
  const V n = hn::Sub(shifted, rounder);
  V r = hn::NegMulAdd(n, hn::Set(d, 0x1.921fb54p+0), x);
  r = hn::NegMulAdd(n, hn::Set(d, 0x1.10b461p-30), r);
  r = hn::NegMulAdd(n, hn::Set(d, 0x1.a62633145c06ep-58), r);
  const V square = hn::Mul(r, r);

  V s = hn::Set(d, 1.0 / 355687428096000.0);
  s = hn::MulAdd(s, square, hn::Set(d, -1.0 / 1307674368000.0));
  s = hn::MulAdd(s, square, hn::Set(d, 1.0 / 6227020800.0));
  s = hn::MulAdd(s, square, hn::Set(d, -1.0 / 39916800.0));
  s = hn::MulAdd(s, square, hn::Set(d, 1.0 / 362880.0));
  s = hn::MulAdd(s, square, hn::Set(d, -1.0 / 5040.0));
  s = hn::MulAdd(s, square, hn::Set(d, 1.0 / 120.0));
  s = hn::MulAdd(s, square, hn::Set(d, -1.0 / 6.0));
  s = hn::MulAdd(hn::Mul(s, square), r, r);

  V c = hn::Set(d, 1.0 / 20922789888000.0);
  c = hn::MulAdd(c, square, hn::Set(d, -1.0 / 87178291200.0));
  c = hn::MulAdd(c, square, hn::Set(d, 1.0 / 479001600.0));
  c = hn::MulAdd(c, square, hn::Set(d, -1.0 / 3628800.0));
  c = hn::MulAdd(c, square, hn::Set(d, 1.0 / 40320.0));
  c = hn::MulAdd(c, square, hn::Set(d, -1.0 / 720.0));
  c = hn::MulAdd(c, square, hn::Set(d, 1.0 / 24.0));
  c = hn::MulAdd(c, square, hn::Set(d, -0.5));
  c = hn::MulAdd(c, square, hn::Set(d, 1.0));

  // Quarter turns: odd ones exchange sine and cosine; bits of n and n + 1 are the signs.
  const auto quarter = hn::BitCast(du, shifted);
  const auto one = hn::Set(du, 1);
  const auto odd = hn::RebindMask(d, hn::Eq(hn::And(quarter, one), one));
  const auto sin_sign = hn::BitCast(d, hn::ShiftLeft<62>(hn::AndNot(one, quarter)));
  const auto cos_sign = hn::BitCast(d, hn::ShiftLeft<62>(hn::AndNot(one, hn::Add(quarter, one))));
  const V sign = hn::SignBit(d);
  *sin = hn::Xor(hn::IfThenElse(odd, c, s), hn::And(sin_sign, sign));
  *cos = hn::Xor(hn::IfThenElse(odd, s, c), hn::And(cos_sign, sign));
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
