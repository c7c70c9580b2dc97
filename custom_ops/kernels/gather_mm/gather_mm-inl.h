// Chooses the path of a tile of gather_mm. Included once per target by gather_mm.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATHER_MM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATHER_MM_INL_H_
#undef COREAI_KERNELS_GATHER_MM_INL_H_
#else
#define COREAI_KERNELS_GATHER_MM_INL_H_
#endif

#include "kernels/gather_mm/gather_mm_few_rows-inl.h"
#include "kernels/gather_mm/gather_mm_few_rows_packed-inl.h"
#include "kernels/gather_mm/gather_mm_many-inl.h"
#include "kernels/gather_mm/gather_mm_pack-inl.h"
#include "kernels/select-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

template <size_t kRows, typename T, GatherMmLayout kLayout>
void MultiplyFewAs(const GatherMmTile& t, void* scratch) {
  if constexpr (kLayout == GatherMmLayout::kRows) MultiplyFew<kRows, T>(t, scratch);
  if constexpr (kLayout == GatherMmLayout::kTransposed) MultiplyFewTransposed<kRows, T>(t);
  if constexpr (kLayout == GatherMmLayout::kPacked) MultiplyFewPacked<kRows, T>(t);
}

template <typename T, GatherMmLayout kLayout>
void GatherMm(const GatherMmTile& t, void* scratch) {
  static_assert(kGatherMmFewRows == 4, "one case for each");
  switch (t.rows) {
    case 0:
      return;
    case 1:
      return MultiplyFewAs<1, T, kLayout>(t, scratch);
    case 2:
      return MultiplyFewAs<2, T, kLayout>(t, scratch);
    case 3:
      return MultiplyFewAs<3, T, kLayout>(t, scratch);
    case 4:
      return MultiplyFewAs<4, T, kLayout>(t, scratch);
    default:
      return MultiplyMany<T>(t, kLayout, scratch);
  }
}

template <typename T>
GatherMmKernel GatherMmOfLayout(GatherMmLayout layout) {
  switch (layout) {
    case GatherMmLayout::kRows:
      return GatherMm<T, GatherMmLayout::kRows>;
    case GatherMmLayout::kTransposed:
      return GatherMm<T, GatherMmLayout::kTransposed>;
    case GatherMmLayout::kPacked:
      return GatherMm<T, GatherMmLayout::kPacked>;
  }
  return nullptr;
}

inline GatherMmKernel SelectGatherMm(DType dtype, GatherMmLayout layout) {
  return SelectByDType(
      dtype, [=](auto zero) -> GatherMmKernel { return GatherMmOfLayout<decltype(zero)>(layout); });
}

inline GatherMmPackLeftKernel SelectGatherMmPackLeft(DType dtype) {
  return dtype == DType::kFloat64 ? PackLeft<double> : PackLeft<float>;
}

inline GatherMmPackRightKernel SelectGatherMmPackRight(DType dtype, bool transposed) {
  return SelectByDType(dtype, [=](auto zero) -> GatherMmPackRightKernel {
    using T = decltype(zero);
    return transposed ? PackRight<T, true> : PackRight<T, false>;
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
