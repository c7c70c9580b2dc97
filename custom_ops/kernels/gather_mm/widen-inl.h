// Included once per target by gather_mm.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_WIDEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_WIDEN_INL_H_
#undef COREAI_KERNELS_WIDEN_INL_H_
#else
#define COREAI_KERNELS_WIDEN_INL_H_
#endif

#include "kernels/gather_mm/widen.h"
#include "kernels/select-inl.h"
#include "simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

template <typename T>
void Widen(const void* input, size_t count, void* output) {
  ConvertRow(hn::ScalableTag<Wide<T>>(), static_cast<const T*>(input), count,
             static_cast<Wide<T>*>(output));
}

inline WidenKernel SelectWiden(DType dtype) {
  return SelectByDType(dtype, [](auto zero) -> WidenKernel { return Widen<decltype(zero)>; });
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
