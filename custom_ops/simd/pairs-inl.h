// Pairs of bfloat16, each pair in the 32 bits of a float lane, and their products. Included once
// per target.

#include "hwy/highway.h"

#if defined(COREAI_SIMD_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_SIMD_PAIRS_INL_H_
#undef COREAI_SIMD_PAIRS_INL_H_
#else
#define COREAI_SIMD_PAIRS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Whether bfloat16 is multiplied in pairs: only if the processor does so natively. Otherwise that
/// takes more instructions than widening first, and only the fuzzer uses it.
#ifdef COREAI_PAIRS_EVERYWHERE
inline constexpr bool kNativePairs = true;
#else
inline constexpr bool kNativePairs = HWY_TARGET == HWY_AVX3_ZEN4;
#endif

/// Loads min(n, 2 * Lanes(d)) bfloat16, two per lane; the rest is zero. Accesses no other memory.
template <class D>
HWY_INLINE hn::Vec<D> LoadPairs(D d, const hwy::bfloat16_t* HWY_RESTRICT p, size_t n) {
  const hn::RebindToUnsigned<D> du;
#if HWY_TARGET == HWY_SCALAR
  const std::uint32_t low = n > 0 ? hwy::BitCastScalar<std::uint16_t>(p[0]) : 0u;
  const std::uint32_t high = n > 1 ? hwy::BitCastScalar<std::uint16_t>(p[1]) : 0u;
  return hn::BitCast(d, hn::Set(du, low | high << 16));
#else
  const hn::Repartition<std::uint16_t, D> d16;
  const auto* bits = reinterpret_cast<const std::uint16_t*>(p);
  (void)du;
  return hn::BitCast(d, n >= hn::Lanes(d16) ? hn::LoadU(d16, bits) : hn::LoadN(d16, bits, n));
#endif
}

/// sum[i] + a[2 i] b[2 i] + a[2 i + 1] b[2 i + 1] for pairs a and b.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V AddProducts(D d, V a, V b, V sum) {
#if HWY_TARGET == HWY_AVX3_ZEN4
  const hn::Repartition<hwy::bfloat16_t, D> d16;
  V unused = hn::Zero(d);
  return hn::ReorderWidenMulAccumulate(d, hn::BitCast(d16, a), hn::BitCast(d16, b), sum, unused);
#else
  const hn::RebindToUnsigned<D> du;
  const auto low = [&](V x)
                       HWY_ATTR { return hn::BitCast(d, hn::ShiftLeft<16>(hn::BitCast(du, x))); };
  const auto high = [&](V x) HWY_ATTR {
    return hn::BitCast(d, hn::And(hn::BitCast(du, x), hn::Set(du, 0xFFFF0000u)));
  };
  return hn::MulAdd(high(a), high(b), hn::MulAdd(low(a), low(b), sum));
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
