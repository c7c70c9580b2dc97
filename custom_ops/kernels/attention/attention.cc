#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/attention.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/attention/attention-inl.h"

#if HWY_ONCE
#include "kernels/attention/attention_tiles.h"
#include "simd/dispatch.h"

namespace coreai {

AttentionKernel FindAttention(Target target, DType dtype) {
  return COREAI_FOR_WITH_AMX(target, SelectAttention, SelectAttentionOfAmx)(dtype);
}

AttentionKernel FindAttentionNbits(Target target, DType dtype, unsigned bits) {
  return COREAI_FOR(target, SelectAttentionNbits)(dtype, bits);
}

bool AttentionUsesTileRegisters(Target target, DType dtype) {
  return HasAmxVersion(target) && dtype == DType::kBFloat16;
}

}  // namespace coreai
#endif
