// Included once per target by residual_add.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_RESIDUAL_ADD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_RESIDUAL_ADD_INL_H_
#undef COREAI_KERNELS_RESIDUAL_ADD_INL_H_
#else
#define COREAI_KERNELS_RESIDUAL_ADD_INL_H_
#endif

#include "kernels/norms/residual_add.h"
#include "simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

template <typename T>
void ResidualAdd(const void* input, const void* skip, std::size_t count, void* sum) {
  const hn::ScalableTag<Wide<T>> d;
  const size_t lanes = hn::Lanes(d);
  const auto* a = static_cast<const T*>(input);
  const auto* b = static_cast<const T*>(skip);
  auto* out = static_cast<T*>(sum);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    StoreNarrow(hn::Add(LoadWide(d, a + i), LoadWide(d, b + i)), d, out + i);
  }
  if (const size_t n = count - i; n != 0) {
    StoreNarrowN(hn::Add(LoadWideN(d, a + i, n), LoadWideN(d, b + i, n)), d, out + i, n);
  }
}

inline ResidualAddKernel SelectResidualAdd(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ResidualAdd<float>;
    case DType::kFloat16:
      return ResidualAdd<hwy::float16_t>;
    case DType::kBFloat16:
      return ResidualAdd<hwy::bfloat16_t>;
    case DType::kFloat64:
      return ResidualAdd<double>;
  }
  return nullptr;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
