// Included once per target by norms.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_RESIDUAL_ADD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_RESIDUAL_ADD_INL_H_
#undef COREAI_KERNELS_RESIDUAL_ADD_INL_H_
#else
#define COREAI_KERNELS_RESIDUAL_ADD_INL_H_
#endif

#include "kernels/norms/residual_add.h"
#include "kernels/select-inl.h"
#include "simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

template <typename T>
void ResidualAdd(const void* input, const void* skip, std::size_t count, void* sum) {
  const hn::ScalableTag<Wide<T>> d;
  const auto* a = static_cast<const T*>(input);
  const auto* b = static_cast<const T*>(skip);
  auto* out = static_cast<T*>(sum);
  ForEachVector(d, count, [&](size_t i, auto lanes) COREAI_INLINE_LAMBDA {
    lanes.Store(hn::Add(lanes.Load(d, a + i), lanes.Load(d, b + i)), d, out + i);
  });
}

inline ResidualAddKernel SelectResidualAdd(DType dtype) {
  return SelectByDType(dtype,
                       [](auto zero) -> ResidualAddKernel { return ResidualAdd<decltype(zero)>; });
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
