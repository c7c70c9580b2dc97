// For the targets on which Highway itself uses VNNI.
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
#include "kernels/few_bits/tiled-inl.h"
#include "kernels/few_bits/tiled_parts-inl.h"

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

RoundedKernel FindRounded(Target target) { return FindRounded(target, CpuHasVnni(target)); }

RoundedKernel FindRounded(Target target, bool vnni) {
  static constexpr RoundedKernel kKernels[][kTargetCount] = {
      COREAI_TARGETS_WITH_AMX(Rounded, RoundedWithAmx),
      COREAI_TARGETS_WITH_AMX(RoundedWithVnni, RoundedWithAmx)};
  return kKernels[vnni][static_cast<std::size_t>(target)];
}

FewBitsPartsKernel FindFewBitsParts(Target target) {
  static constexpr FewBitsPartsKernel (*kSelect[kTargetCount])() =
      COREAI_TARGETS_WITH_AMX(SelectFewBitsParts, SelectFewBitsPartsOfAmx);
  return kSelect[static_cast<std::size_t>(target)]();
}

FewBitsSplitKernel FindFewBitsSplit(Target target) {
  static constexpr FewBitsSplitKernel (*kSelect[kTargetCount])() =
      COREAI_TARGETS_WITH_AMX(SelectFewBitsSplit, SelectFewBitsSplitOfAmx);
  return kSelect[static_cast<std::size_t>(target)]();
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
