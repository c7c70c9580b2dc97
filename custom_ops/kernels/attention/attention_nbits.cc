#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/attention_nbits.cc"
#include "hwy/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/attention/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

template <typename T, size_t kBits>
void AttentionOfCodes(const AttentionProblem& a, size_t item, void* scratch) {
  using Stored = AttentionNbits<T, kBits>;
  Attention<T, AttentionTile<T, Stored>, Stored>(a, item, scratch);
}

inline AttentionKernel SelectAttentionNbits(DType dtype, unsigned bits) {
  return SelectByDType(dtype, [bits](auto zero) -> AttentionKernel {
    using T = decltype(zero);
    return bits == 8 ? AttentionOfCodes<T, 8> : AttentionOfCodes<T, 4>;
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "simd/dispatch.h"

namespace coreai {

AttentionKernel FindAttentionNbits(Target target, DType dtype, unsigned bits) {
  return COREAI_FOR(target, SelectAttentionNbits)(dtype, bits);
}

}  // namespace coreai
#endif
