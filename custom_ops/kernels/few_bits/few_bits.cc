// For VNNI, which Highway uses on the targets that also have products of bfloat16.
#undef COREAI_DISABLED_BF16_TARGETS
#define COREAI_DISABLED_BF16_TARGETS 0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/few_bits/few_bits.cc"
#include "hwy/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/few_bits/few-inl.h"
#include "kernels/few_bits/many-inl.h"
#include "kernels/few_bits/rounded-inl.h"

#if HWY_ONCE
#include "simd/dispatch.h"

namespace coreai {

FewBitsKernel FindFewBits(Target target) {
  static constexpr FewBitsKernel kKernels[kTargetCount] = COREAI_TARGETS(FewBits);
  return kKernels[static_cast<std::size_t>(target)];
}

FewBitsManyKernel FindFewBitsMany(Target target) {
  static constexpr FewBitsManyKernel kKernels[kTargetCount] = COREAI_TARGETS(FewBitsMany);
  return kKernels[static_cast<std::size_t>(target)];
}

RoundedKernel FindRounded(Target target) {
  static constexpr RoundedKernel kKernels[kTargetCount] = COREAI_TARGETS(Rounded);
  return kKernels[static_cast<std::size_t>(target)];
}

RoundKernel FindRound(Target target) {
  static constexpr RoundKernel kKernels[kTargetCount] = COREAI_TARGETS(Round);
  return kKernels[static_cast<std::size_t>(target)];
}

FinishKernel FindFinish(Target target) {
  static constexpr FinishKernel kKernels[kTargetCount] = COREAI_TARGETS(Finish);
  return kKernels[static_cast<std::size_t>(target)];
}

}  // namespace coreai
#endif
