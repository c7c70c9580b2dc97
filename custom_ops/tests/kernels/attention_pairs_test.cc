// Attention on pairs of bfloat16, which kernels use where the processor multiplies them natively.
// Here every target does, by instructions that all processors have.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/attention_pairs_test.cc"
#include "hwy/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/attention_tile-inl.h"

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
#include "reference/attention.h"
#include "simd/dispatch.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

constexpr AttentionKernel kAttentionOfPairs[] = COREAI_TARGETS(AttentionOfPairs);

void Check(AttentionCase c) {
  const DType dtype = DType::kBFloat16;
  const auto fill = [&](std::size_t count, unsigned seed) {
    return Tensor(dtype, Normal(count, seed)).Values();
  };
  c.query = fill(c.batch * c.heads * c.queries * c.head_dim, 1);
  c.key = fill(c.batch * c.key_heads * c.keys * c.head_dim, 2);
  c.value = fill(c.batch * c.value_heads * c.keys * c.value_dim, 3);
  const auto want = AttentionReference(c);
  // From odd addresses, of exactly their size.
  const Tensor query(dtype, c.query, 1), key(dtype, c.key, 1), value(dtype, c.value, 1);
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(::testing::Message()
                 << TargetName(target) << " queries " << c.queries << " keys " << c.keys << " dims "
                 << c.head_dim << ',' << c.value_dim << " window " << c.window);
    const Tensor output(dtype, want.size(), 1);
    AttentionProblem problem = {};
    problem.query = query.data();
    problem.key = key.data();
    problem.value = value.data();
    problem.output = output.data();
    problem.batch = c.batch;
    problem.heads = c.heads;
    problem.key_heads = c.key_heads;
    problem.value_heads = c.value_heads;
    problem.queries = c.queries;
    problem.keys = c.keys;
    problem.head_dim = c.head_dim;
    problem.value_dim = c.value_dim;
    problem.scale = c.scale;
    problem.causal = c.causal;
    problem.window = c.window;
    problem.offset = c.offset;
    const Tensor scratch(DType::kFloat64, AttentionScratchBytes(problem, dtype) / 8);
    for (std::size_t i = AttentionItems(problem); i-- > 0;) {
      kAttentionOfPairs[static_cast<std::size_t>(target)](problem, i, scratch.data());
    }
    ExpectNear(output, want, dtype);
  }
}

AttentionCase Sized(std::size_t queries, std::size_t keys, std::size_t head_dim,
                    std::size_t value_dim) {
  AttentionCase c;
  c.batch = 2;
  c.heads = 2;
  c.key_heads = c.value_heads = 1;
  c.queries = queries;
  c.keys = keys;
  c.head_dim = head_dim;
  c.value_dim = value_dim;
  c.scale = head_dim == 0 ? 1 : 1 / std::sqrt(static_cast<double>(head_dim));
  return c;
}

TEST(AttentionOfPairs, EveryHeadAndValueDim) {
  for (std::size_t n = 0; n <= 2 * 32 + 1; ++n) {
    Check(Sized(9, 7, n, 3));
    Check(Sized(9, 7, 3, n));
  }
}

TEST(AttentionOfPairs, EveryNumberOfKeys) {
  for (std::size_t keys = 0; keys <= 30; ++keys) Check(Sized(20, keys, 8, 5));
  for (const std::size_t keys : {95u, 96u, 97u, 193u}) Check(Sized(50, keys, 33, 26));
  Check(Sized(300, 40, 64, 64));
}

TEST(AttentionOfPairs, CausalAndWindows) {
  for (const std::size_t keys : {5u, 97u, 220u}) {
    for (const std::int64_t window : {0, 1, 3, 40}) {
      for (const bool causal : {false, true}) {
        AttentionCase c = Sized(70, keys, 6, 9);
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
