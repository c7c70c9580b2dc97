// Chooses the path of a tile of gather_mm. Included once per target by gather_mm.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATHER_MM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATHER_MM_INL_H_
#undef COREAI_KERNELS_GATHER_MM_INL_H_
#else
#define COREAI_KERNELS_GATHER_MM_INL_H_
#endif

#include "kernels/gather_mm_few-inl.h"
#include "kernels/gather_mm_many-inl.h"
#include "kernels/gather_mm_transposed-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

template <typename T>
void GatherMm(const GatherMmTile& t, void* scratch) {
  static_assert(kGatherMmFewRows == 4, "one case for each");
  switch (t.rows) {
    case 0:
      return;
    case 1:
      return MultiplyFew<1, T>(t, scratch);
    case 2:
      return MultiplyFew<2, T>(t, scratch);
    case 3:
      return MultiplyFew<3, T>(t, scratch);
    case 4:
      return MultiplyFew<4, T>(t, scratch);
    default:
      return MultiplyMany<T>(t, scratch);
  }
}

template <typename T>
void GatherMmTransposed(const GatherMmTile& t, void* scratch) {
  switch (t.rows) {
    case 0:
      return;
    case 1:
      return MultiplyFewTransposed<1, T>(t);
    case 2:
      return MultiplyFewTransposed<2, T>(t);
    case 3:
      return MultiplyFewTransposed<3, T>(t);
    case 4:
      return MultiplyFewTransposed<4, T>(t);
    default:
      return TransposedTile<T>(t, scratch).Run();
  }
}

inline GatherMmKernel SelectGatherMm(DType dtype, bool transposed) {
  switch (dtype) {
    case DType::kFloat32:
      return transposed ? GatherMmTransposed<float> : GatherMm<float>;
    case DType::kFloat16:
      return transposed ? GatherMmTransposed<hwy::float16_t> : GatherMm<hwy::float16_t>;
    case DType::kBFloat16:
      return transposed ? GatherMmTransposed<hwy::bfloat16_t> : GatherMm<hwy::bfloat16_t>;
    case DType::kFloat64:
      return transposed ? GatherMmTransposed<double> : GatherMm<double>;
  }
  return nullptr;
}

inline GatherMmPackKernel SelectGatherMmPack(DType wide) {
  return wide == DType::kFloat64 ? PackLeft<double> : PackLeft<float>;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
