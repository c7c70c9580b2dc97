// Numbers of float16 as sums of two bfloat16, for exact products by tiles of bfloat16. Included
// once per target.
//
// A float16 has 11 significant bits. Its upper 8 are a bfloat16, and the other 3 are another one,
// because bfloat16 has the exponents of float32: parts of subnormal float16 are normal, at least
// 2^-24, and tile instructions do not flush them. With x = x0 + x1 and y = y0 + y1, the four
// products xi * yj are exact in float32, so that their sum has the accuracy of products in float32.
// Without x1 * y1, up to 2^-14 of |x * y|, a sum of products that cancel would be wrong in float16.
//
// Infinity has the parts infinity and NaN: a product with an infinite factor is NaN, which the
// caller has to compute again. Sums of finite numbers are right; a sum that is infinite without
// being NaN is right as well.

#include <cstdint>

#include "hwy/highway.h"

#if defined(COREAI_SIMD_AMX_SPLIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_SIMD_AMX_SPLIT_INL_H_
#undef COREAI_SIMD_AMX_SPLIT_INL_H_
#else
#define COREAI_SIMD_AMX_SPLIT_INL_H_
#endif

#include "simd/amx-inl.h"
#include "simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Stores the upper halves of the lanes of `a`, then those of `b`.
template <class D>
HWY_INLINE void StoreUpperHalves(D /*d*/, hn::Vec<D> a, hn::Vec<D> b,
                                 std::uint16_t* HWY_RESTRICT to) {
#if HWY_TARGET == HWY_SCALAR
  const hn::RebindToUnsigned<D> du;
  to[0] = static_cast<std::uint16_t>(hn::GetLane(hn::BitCast(du, a)) >> 16);
  to[1] = static_cast<std::uint16_t>(hn::GetLane(hn::BitCast(du, b)) >> 16);
#else
  const hn::Repartition<std::uint16_t, D> d16;
  hn::StoreU(hn::ConcatOdd(d16, hn::BitCast(d16, b), hn::BitCast(d16, a)), d16, to);
#endif
}

/// Stores the parts of 2 * Lanes(d) numbers, of which each has at most 16 significant bits.
template <class D>
HWY_INLINE void StoreParts(D d, hn::Vec<D> a, hn::Vec<D> b, std::uint16_t* HWY_RESTRICT high,
                           std::uint16_t* HWY_RESTRICT low) {
  const hn::RebindToUnsigned<D> du;
  const auto mask = hn::BitCast(d, hn::Set(du, 0xFFFF0000u));
  StoreUpperHalves(d, a, b, high);
  StoreUpperHalves(d, hn::Sub(a, hn::And(a, mask)), hn::Sub(b, hn::And(b, mask)), low);
}

/// Splits a tile of float16 into tiles of its parts.
HWY_INLINE void SplitAmxTile(const std::uint32_t* HWY_RESTRICT tile,
                             std::uint32_t* HWY_RESTRICT high, std::uint32_t* HWY_RESTRICT low) {
  const hn::ScalableTag<float> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  const auto* from = reinterpret_cast<const hwy::float16_t*>(tile);
  auto* to_high = reinterpret_cast<std::uint16_t*>(high);
  auto* to_low = reinterpret_cast<std::uint16_t*>(low);
  for (size_t i = 0; i < kAmxBytes / 2; i += 2 * kLanes) {
    StoreParts(d, LoadWide(d, from + i), LoadWide(d, from + i + kLanes), to_high + i, to_low + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
