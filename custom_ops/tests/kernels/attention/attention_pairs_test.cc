// Attention on pairs of bfloat16, which kernels use where the processor multiplies them natively.
// Here every target does, by instructions that all processors have.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/attention/attention_pairs_test.cc"
#include "hwy/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/attention/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

inline void AttentionOfPairs(const AttentionProblem& a, size_t item, void* scratch) {
  AttentionTile<hwy::bfloat16_t, true>(a, item, scratch).Run();
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/attention/attention_case.h"
#include "simd/dispatch.h"

namespace coreai::testing {
namespace {

constexpr AttentionKernel kAttentionOfPairs[] = COREAI_TARGETS(AttentionOfPairs);

void Check(AttentionCase c) {
  const DType dtype = DType::kBFloat16;
  Randomise(&c, dtype);
  const auto want = AttentionReference(c);
  const AttentionTensors tensors(c, dtype, 1);
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(Describe(c, target, dtype));
    const Tensor output(dtype, want.size(), 1);
    RunAll(kAttentionOfPairs[static_cast<std::size_t>(target)], ProblemOf(c, tensors, output),
           dtype);
    ExpectNear(output, want, dtype);
  }
}

// Two batches of two heads that share a key head.
AttentionCase Grouped(std::size_t queries, std::size_t keys, std::size_t head_dim,
                      std::size_t value_dim) {
  return Sized(queries, keys, head_dim, value_dim, 2, 1, 1, 2);
}

TEST(AttentionOfPairs, EveryHeadAndValueDim) {
  for (std::size_t n = 0; n <= 2 * 32 + 1; ++n) {
    Check(Grouped(9, 7, n, 3));
    Check(Grouped(9, 7, 3, n));
  }
}

TEST(AttentionOfPairs, EveryNumberOfKeys) {
  for (std::size_t keys = 0; keys <= 30; ++keys) Check(Grouped(20, keys, 8, 5));
  for (const std::size_t keys : {95u, 96u, 97u, 193u}) Check(Grouped(50, keys, 33, 26));
  Check(Grouped(300, 40, 64, 64));
}

TEST(AttentionOfPairs, CausalAndWindows) {
  for (const std::size_t keys : {5u, 97u, 220u}) {
    for (const std::int64_t window : {0, 1, 3, 40}) {
      for (const bool causal : {false, true}) {
        AttentionCase c = Grouped(70, keys, 6, 9);
        c.causal = causal;
        c.window = window;
        c.offset = static_cast<std::int64_t>(keys) - 70;
        Check(c);
      }
    }
  }
}

}  // namespace
}  // namespace coreai::testing
#endif
