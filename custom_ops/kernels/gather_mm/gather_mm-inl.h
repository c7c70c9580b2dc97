// Chooses the path of a tile of gather_mm. Included once per target by gather_mm.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATHER_MM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATHER_MM_INL_H_
#undef COREAI_KERNELS_GATHER_MM_INL_H_
#else
#define COREAI_KERNELS_GATHER_MM_INL_H_
#endif

#include "kernels/gather_mm/gather_mm_few-inl.h"
#include "kernels/gather_mm/gather_mm_few_packed-inl.h"
#include "kernels/gather_mm/gather_mm_many-inl.h"
#include "kernels/gather_mm/gather_mm_pack-inl.h"

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
  switch (dtype) {
    case DType::kFloat32:
      return GatherMmOfLayout<float>(layout);
    case DType::kFloat16:
      return GatherMmOfLayout<hwy::float16_t>(layout);
    case DType::kBFloat16:
      return GatherMmOfLayout<hwy::bfloat16_t>(layout);
    case DType::kFloat64:
      return GatherMmOfLayout<double>(layout);
  }
  return nullptr;
}

inline GatherMmPackLeftKernel SelectGatherMmPackLeft(DType dtype) {
  return dtype == DType::kFloat64 ? PackLeft<double> : PackLeft<float>;
}

template <typename T>
GatherMmPackRightKernel GatherMmPackRightOf(bool transposed) {
  return transposed ? PackRight<T, true> : PackRight<T, false>;
}

inline GatherMmPackRightKernel SelectGatherMmPackRight(DType dtype, bool transposed) {
  switch (dtype) {
    case DType::kFloat32:
      return GatherMmPackRightOf<float>(transposed);
    case DType::kFloat16:
      return GatherMmPackRightOf<hwy::float16_t>(transposed);
    case DType::kBFloat16:
      return GatherMmPackRightOf<hwy::bfloat16_t>(transposed);
    case DType::kFloat64:
      return GatherMmPackRightOf<double>(transposed);
  }
  return nullptr;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
