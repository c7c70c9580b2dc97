// Chooses the version of a kernel for a dtype. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_SELECT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_SELECT_INL_H_
#undef COREAI_KERNELS_SELECT_INL_H_
#else
#define COREAI_KERNELS_SELECT_INL_H_
#endif

#include "kernels/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Returns kernel(zero), where `zero` has the element type of a dtype.
template <class Kernel>
constexpr auto SelectByDType(DType dtype, const Kernel& kernel) {
  switch (dtype) {
    case DType::kFloat16:
      return kernel(hwy::float16_t());
    case DType::kBFloat16:
      return kernel(hwy::bfloat16_t());
    case DType::kFloat64:
      return kernel(double());
    default:
      return kernel(float());
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
