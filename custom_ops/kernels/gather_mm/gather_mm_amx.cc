// For the target on which Highway rounds to bfloat16 by instructions.
#undef COREAI_DISABLED_BF16_TARGETS
#define COREAI_DISABLED_BF16_TARGETS 0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gather_mm/gather_mm_amx.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/gather_mm/gather_mm_amx-inl.h"
#include "kernels/gather_mm/gather_mm_amx.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

inline GatherMmPackRightKernel SelectPackAmxRight(bool transposed) {
  return transposed ? PackAmxRight<true> : PackAmxRight<false>;
}

template <typename T>
constexpr GatherMmOfTiles KernelsOf() {
  return {ProductOfTiles<KernelTiles, T>, PackAmxLeft<T>, SelectPackAmxRight};
}

inline GatherMmOfTiles SelectGatherMmOfTiles(DType dtype) {
  return dtype == DType::kFloat16 ? KernelsOf<hwy::float16_t>() : KernelsOf<hwy::bfloat16_t>();
}

inline GatherMmOfTiles NoTiles(DType) { return {}; }

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "simd/dispatch.h"

namespace coreai {

GatherMmOfTiles FindGatherMmOfTiles(Target target, DType dtype) {
  return COREAI_FOR_WITH_AMX(target, NoTiles, SelectGatherMmOfTiles)(dtype);
}

}  // namespace coreai
#endif
