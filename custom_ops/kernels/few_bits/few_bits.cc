// For the targets on which Highway itself uses VNNI.
#undef COREAI_DISABLED_BF16_TARGETS
#define COREAI_DISABLED_BF16_TARGETS 0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/few_bits/few_bits.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/few_bits/large_batch-inl.h"
#include "kernels/few_bits/rounded-inl.h"
#include "kernels/few_bits/small_batch-inl.h"
#include "kernels/few_bits/tiled-inl.h"
#include "kernels/few_bits/tiled_parts-inl.h"

#if HWY_ONCE
#include "simd/dispatch.h"

namespace coreai {

FewBitsSmallBatchKernel FindFewBitsSmallBatch(Target target) {
  return COREAI_FOR(target, MultiplySmallBatch);
}

FewBitsSmallBatchKernel FindFewBitsInOrder(Target target) {
  return COREAI_FOR(target, MultiplyInOrder);
}

FewBitsLargeBatchKernel FindFewBitsLargeBatch(Target target) {
  return COREAI_FOR(target, MultiplyLargeBatch);
}

FewBitsMinimumsKernel FindFewBitsMinimums(Target target) {
  return COREAI_FOR(target, SubtractMinimums);
}

RoundedKernel FindRounded(Target target) { return FindRounded(target, CpuHasVnni(target)); }

RoundedKernel FindRounded(Target target, bool vnni) {
  static constexpr RoundedKernel kKernels[][kTargetCount] = {
      COREAI_TARGETS_WITH_AMX(Rounded, RoundedWithAmx),
      COREAI_TARGETS_WITH_AMX(RoundedWithVnni, RoundedWithAmx)};
  return kKernels[vnni][static_cast<std::size_t>(target)];
}

FewBitsPartsKernel FindFewBitsParts(Target target) {
  return COREAI_FOR_WITH_AMX(target, SelectFewBitsParts, SelectFewBitsPartsOfAmx)();
}

FewBitsSplitKernel FindFewBitsSplit(Target target) {
  return COREAI_FOR_WITH_AMX(target, SelectFewBitsSplit, SelectFewBitsSplitOfAmx)();
}

RoundKernel FindRound(Target target) { return COREAI_FOR(target, Round); }

RoundPairsKernel FindRoundPairs(Target target) {
  return COREAI_FOR_WITH_AMX(target, SelectRoundPairs, SelectRoundPairsOfAmx)();
}

FinishKernel FindFinish(Target target) { return COREAI_FOR(target, Finish); }

}  // namespace coreai
#endif
