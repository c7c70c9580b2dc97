// Chooses the path of an item of attention. Included once per target by attention.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_ATTENTION_INL_H_
#undef COREAI_KERNELS_ATTENTION_INL_H_
#else
#define COREAI_KERNELS_ATTENTION_INL_H_
#endif

#include "kernels/attention/attention_amx-inl.h"
#include "kernels/attention/attention_few_rows-inl.h"
#include "kernels/attention/attention_tile-inl.h"
#include "kernels/select-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

template <typename T, class Tile, class Stored = AttentionFloats<T>>
void Attention(const AttentionProblem& a, size_t item, void* scratch) {
  constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<Wide<T>>());
  const size_t rows = AttentionSpan(a);
  // With rows in the lanes, rows for less than half of the lanes waste more than sums across lanes.
  if constexpr (kLanes > 1) {
    const bool few = rows <= HWY_MIN(kMaxFewRows, kLanes / 2) && Stored::IsWhole(a, kLanes);
    if (few && !a.deterministic) {
      if (rows == 1) return AttentionFew<T, 1, Stored>(a, item, scratch).Run();
      if (rows == 2) return AttentionFew<T, 2, Stored>(a, item, scratch).Run();
      if (rows <= 4) return AttentionFew<T, 4, Stored>(a, item, scratch).Run();
      return AttentionFew<T, 8, Stored>(a, item, scratch).Run();
    }
  }
  Tile(a, item, scratch).Run();
}

template <typename T>
void AttentionOfVectors(const AttentionProblem& a, size_t item, void* scratch) {
  Attention<T, AttentionTile<T>>(a, item, scratch);
}

template <typename T, size_t kBits>
void AttentionOfCodes(const AttentionProblem& a, size_t item, void* scratch) {
  Attention<T, AttentionTile<T>, AttentionNbits<T, kBits>>(a, item, scratch);
}

inline AttentionKernel SelectAttentionNbits(DType dtype, unsigned bits) {
  return SelectByDType(dtype, [bits](auto zero) -> AttentionKernel {
    using T = decltype(zero);
    return bits == 8 ? AttentionOfCodes<T, 8> : AttentionOfCodes<T, 4>;
  });
}

inline AttentionKernel SelectAttention(DType dtype) {
  return SelectByDType(
      dtype, [](auto zero) -> AttentionKernel { return AttentionOfVectors<decltype(zero)>; });
}

/// The same on a processor with AMX.
inline AttentionKernel SelectAttentionOfAmx(DType dtype) {
  if (kHasTiles && dtype == DType::kBFloat16) {
    return Attention<hwy::bfloat16_t, AttentionAmx<KernelTiles>>;
  }
  return SelectAttention(dtype);
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
