// Attention by products of tile registers. On every target by their model; what AMX itself gives is
// compared with that bit by bit.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/attention/attention_amx_test.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/attention/attention_amx-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

inline void AttentionOfModel(const AttentionProblem& a, size_t item, void* scratch) {
  AttentionAmx<ModelTiles>(a, item, scratch).Run();
}

inline void AttentionOfAmx(const AttentionProblem& a, size_t item, void* scratch) {
  AttentionAmx<KernelTiles>(a, item, scratch).Run();
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/attention/attention_case.h"
#include "simd/dispatch.h"

namespace coreai::testing {
namespace {

constexpr AttentionKernel kModel[] = COREAI_TARGETS(AttentionOfModel);
constexpr AttentionKernel kAmx[] = COREAI_TARGETS(AttentionOfAmx);

void CheckFilled(const AttentionCase& c) {
  const DType dtype = DType::kBFloat16;
  const auto want = AttentionReference(c);
  const AttentionTensors tensors(c, dtype, 1);
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(Describe(c, target, dtype));
    const Tensor output(dtype, want.size(), 1);
    AttentionProblem problem = ProblemOf(c, tensors, output);
    problem.tile_registers = true;
    RunAll(kModel[static_cast<std::size_t>(target)], problem, dtype);
    ExpectNear(output, want, dtype);
    if (target != Target::kAmx) continue;
    const Tensor native(dtype, want.size(), 1);
    problem.output = native.data();
    RunAll(kAmx[static_cast<std::size_t>(target)], problem, dtype);
    EXPECT_EQ(native.Values(), output.Values());
  }
}

void Check(AttentionCase c) {
  Randomize(&c, DType::kBFloat16);
  CheckFilled(c);
}

// Two batches of two heads that share a key head.
AttentionCase Grouped(std::size_t queries, std::size_t keys, std::size_t head_dim,
                      std::size_t value_dim) {
  return Sized(queries, keys, head_dim, value_dim, 2, 1, 1, 2);
}

TEST(AttentionAmx, EveryHeadAndValueDim) {
  for (std::size_t n = 0; n <= 2 * 32 + 1; ++n) {
    Check(Grouped(9, 7, n, 3));
    Check(Grouped(9, 7, 3, n));
  }
}

TEST(AttentionAmx, EveryNumberOfKeys) {
  for (std::size_t keys = 0; keys <= 30; ++keys) Check(Grouped(20, keys, 8, 5));
  for (const std::size_t keys : {95u, 96u, 97u, 193u}) Check(Grouped(50, keys, 33, 26));
  Check(Grouped(300, 40, 64, 64));
}

TEST(AttentionAmx, CausalAndWindows) {
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

// A head is one item of 321 rows, which are more than those of an item without tile registers.
TEST(AttentionAmx, LongTiles) {
  for (const bool causal : {false, true}) {
    AttentionCase c = Grouped(321, 70, 8, 5);
    c.batch = 16;
    c.causal = causal;
    c.offset = 70 - 321;
    Check(c);
  }
}

// The largest score takes it all, however inexact the others are.
TEST(AttentionAmx, HugeScores) {
  for (const double scale : {1e5, 1e9, 1e30}) {
    AttentionCase c = Grouped(40, 50, 8, 5);
    c.scale = scale;
    c.causal = true;
    c.offset = 10;
    Check(c);
  }
}

// Keys grow with their position, so that the score that is subtracted changes in most blocks, and
// weights of earlier blocks are relative to another one.
TEST(AttentionAmx, GrowingScores) {
  const DType dtype = DType::kBFloat16;
  for (const std::size_t queries : {9u, 40u, 70u}) {
    AttentionCase c = Grouped(queries, 300, 32, 40);
    Randomize(&c, dtype);
    c.query.assign(c.query.size(), 1);
    for (std::size_t i = 0; i < c.key.size(); ++i) {
      c.key[i] = static_cast<double>(i / c.head_dim % c.keys / 8);
    }
    CheckFilled(c);
  }
}

}  // namespace
}  // namespace coreai::testing
#endif
