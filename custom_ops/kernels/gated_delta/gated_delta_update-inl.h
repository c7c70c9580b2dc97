// Included once per target by gated_delta_update.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATED_DELTA_UPDATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATED_DELTA_UPDATE_INL_H_
#undef COREAI_KERNELS_GATED_DELTA_UPDATE_INL_H_
#else
#define COREAI_KERNELS_GATED_DELTA_UPDATE_INL_H_
#endif

#include "kernels/gated_delta/gated_delta_chunk-inl.h"
#include "kernels/gated_delta/gated_delta_step-inl.h"
#include "kernels/gated_delta/gated_delta_tiles-inl.h"
#include "kernels/select-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

template <typename T>
void GatedDelta(const GatedDeltaProblem& a, size_t item, void* scratch) {
  if (a.length != 1 && !a.steps) return GatedDeltaChunks<T>(a, item, scratch).Run();
  if (a.wide_state) return GatedDeltaStep<T, Wide<T>>(a, item, scratch).Run();
  GatedDeltaStep<T, T>(a, item, scratch).Run();
}

inline GatedDeltaKernel SelectGatedDelta(DType dtype) {
  return SelectByDType(dtype,
                       [](auto zero) -> GatedDeltaKernel { return GatedDelta<decltype(zero)>; });
}

/// With tiles, unless there are too few tokens for them.
template <typename T>
void GatedDeltaOfAmx(const GatedDeltaProblem& a, size_t item, void* scratch) {
  if (a.length < kMinTileTokens || a.key_dim == 0 || a.steps)
    return GatedDelta<T>(a, item, scratch);
  GatedDeltaTiles<T, KernelTiles>(a, item, scratch).Run();
}

inline GatedDeltaKernel SelectGatedDeltaOfAmx(DType dtype) {
  if constexpr (kHasTiles) {
    if (dtype == DType::kFloat16) return GatedDeltaOfAmx<hwy::float16_t>;
    if (dtype == DType::kBFloat16) return GatedDeltaOfAmx<hwy::bfloat16_t>;
  }
  return SelectGatedDelta(dtype);
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
