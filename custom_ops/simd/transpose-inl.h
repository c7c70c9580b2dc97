// Transposition in registers. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_SIMD_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_SIMD_TRANSPOSE_INL_H_
#undef COREAI_SIMD_TRANSPOSE_INL_H_
#else
#define COREAI_SIMD_TRANSPOSE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Transposes a square block: as many vectors as a vector has lanes.
///
/// The address of an element consists of the bits of its vector index, then those of its lane.
/// Interleaving the first half of the vectors with the second half moves the uppermost bit to the
/// end. Repeated once per bit of the lane index, that swaps the two halves of the address (Stone
/// 1971, "Parallel processing with the perfect shuffle").
template <class D, class V = hn::Vec<D>>
HWY_INLINE void Transpose(D d, V (&rows)[hn::MaxLanes(D())]) {
#if HWY_TARGET == HWY_SCALAR  // has one lane and no interleaving
  (void)d;
  (void)rows;
#else
  constexpr size_t kLanes = hn::MaxLanes(D());
#pragma GCC unroll 4
  for (size_t bit = 1; bit < kLanes; bit *= 2) {
    V shuffled[kLanes];
#pragma GCC unroll 8
    for (size_t i = 0; i < kLanes / 2; ++i) {
      shuffled[2 * i] = hn::InterleaveWholeLower(d, rows[i], rows[i + kLanes / 2]);
      shuffled[2 * i + 1] = hn::InterleaveWholeUpper(d, rows[i], rows[i + kLanes / 2]);
    }
#pragma GCC unroll 16
    for (size_t i = 0; i < kLanes; ++i) rows[i] = shuffled[i];
  }
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
