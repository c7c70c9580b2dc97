// Included once per target by widen.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_WIDEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_WIDEN_INL_H_
#undef COREAI_KERNELS_WIDEN_INL_H_
#else
#define COREAI_KERNELS_WIDEN_INL_H_
#endif

#include "kernels/gather_mm/widen.h"
#include "simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

template <typename T>
void Widen(const void* input, size_t count, void* output) {
  const hn::ScalableTag<Wide<T>> d;
  const auto* in = static_cast<const T*>(input);
  auto* out = static_cast<Wide<T>*>(output);
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(LoadWide(d, in + i), d, out + i);
  if (i < count) hn::StoreN(LoadWideN(d, in + i, count - i), d, out + i, count - i);
}

inline WidenKernel SelectWiden(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return Widen<float>;
    case DType::kFloat16:
      return Widen<hwy::float16_t>;
    case DType::kBFloat16:
      return Widen<hwy::bfloat16_t>;
    case DType::kFloat64:
      return Widen<double>;
  }
  return nullptr;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
