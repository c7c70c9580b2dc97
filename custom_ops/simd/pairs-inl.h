// Pairs of bfloat16, each pair in the 32 bits of a float lane. Included once per target.

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

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
