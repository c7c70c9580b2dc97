// Floats as sums of bfloat16. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_SIMD_PARTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_SIMD_PARTS_INL_H_
#undef COREAI_SIMD_PARTS_INL_H_
#else
#define COREAI_SIMD_PARTS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Splits floats into parts of bfloat16, the most significant first, as pairs: the low half of a
/// word is a part of `even`, the high half one of `odd`. Each part has the next 8 bits, truncated,
/// so that the sum of three parts is exact (of normal numbers), as is that of two for numbers that
/// were float16, and that of one for bfloat16. NaN stays NaN; an infinity becomes one and NaN.
template <size_t kParts, class D, class V = hn::Vec<D>>
HWY_INLINE void SplitPairs(D d, V even, V odd, V (&parts)[kParts]) {
  const hn::RebindToUnsigned<D> du;
  const auto upper = hn::Set(du, 0xFFFF0000u);
#pragma GCC unroll 3
  for (size_t i = 0; i < kParts; ++i) {
    const auto bits = hn::BitCast(du, even);
    const auto odd_part = hn::And(hn::BitCast(du, odd), upper);
    parts[i] = hn::BitCast(d, hn::Or(hn::ShiftRight<16>(bits), odd_part));
    even = hn::Sub(even, hn::BitCast(d, hn::And(bits, upper)));
    odd = hn::Sub(odd, hn::BitCast(d, odd_part));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
