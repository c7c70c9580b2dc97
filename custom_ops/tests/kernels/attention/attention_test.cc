#include "kernels/attention/attention.h"

#include <algorithm>

#include "kernels/attention/attention_case.h"

namespace coreai::testing {
namespace {

// Which axes of the mask are real; along the others it is broadcast (its stride is 0).
struct MaskAxes {
  bool batch = true, head = true, query = true, key = true;
};

// Takes the mask, which is full-sized in `c`, down to the axes that are real and describes it.
std::vector<std::size_t> Narrowed(const AttentionCase& c, const MaskAxes& axes,
                                  AttentionMask* mask) {
  std::vector<std::size_t> kept;
  const std::size_t sizes[] = {axes.batch ? c.batch : 1, axes.head ? c.heads : 1,
                               axes.query ? c.queries : 1, axes.key ? c.keys : 1};
  for (std::size_t b = 0; b < sizes[0]; ++b)
    for (std::size_t h = 0; h < sizes[1]; ++h)
      for (std::size_t q = 0; q < sizes[2]; ++q)
        for (std::size_t k = 0; k < sizes[3]; ++k)
          kept.push_back(((b * c.heads + h) * c.queries + q) * c.keys + k);
  mask->key_stride = axes.key ? 1 : 0;
  mask->query_stride = axes.query ? sizes[3] : 0;
  mask->head_stride = axes.head ? sizes[2] * sizes[3] : 0;
  mask->batch_stride = axes.batch ? sizes[1] * sizes[2] * sizes[3] : 0;
  return kept;
}

struct Options {
  MaskAxes mask_axes;
  bool wide_mask = false;
  std::size_t shift = 0;
};

// Runs a case on every target and compares with the reference.
void Check(const AttentionCase& c, DType dtype, const Options& options = {}) {
  const auto want = AttentionReference(c);
  const AttentionTensors tensors(c, dtype, options.shift);
  AttentionMask mask;
  const auto kept = Narrowed(c, options.mask_axes, &mask);
  const Tensor float_mask(options.wide_mask ? WideDType(dtype) : dtype,
                          c.float_mask.empty() ? 0 : kept.size(), options.shift);
  std::vector<std::uint8_t> bytes;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (!c.bool_mask.empty()) bytes.push_back(c.bool_mask[kept[i]]);
    if (!c.float_mask.empty()) const_cast<Tensor&>(float_mask).Set(i, c.float_mask[kept[i]]);
  }
  if (!c.bool_mask.empty()) {
    mask.kind = MaskKind::kBool;
    mask.data = bytes.data();
  } else if (!c.float_mask.empty()) {
    mask.kind = options.wide_mask ? MaskKind::kWide : MaskKind::kOwn;
    mask.data = float_mask.data();
  }
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(Describe(c, target, dtype));
    const Tensor output(dtype, want.size(), options.shift);
    AttentionProblem problem = ProblemOf(c, tensors, output);
    problem.mask = mask;
    RunAll(FindAttention(target, dtype), problem, dtype);
    ExpectNear(output, want, dtype);
  }
}

TEST(Attention, EveryHeadAndValueDim) {
  for (const DType dtype : AllDTypes()) {
    for (std::size_t n = 0; n <= 2 * 16 + 1; ++n) {
      for (const std::size_t queries : {1u, 3u, 9u}) {
        AttentionCase by_head = Sized(queries, 7, n, 3);
        Randomize(&by_head, dtype);
        Check(by_head, dtype, {{}, false, n % 3});
        AttentionCase by_value = Sized(queries, 7, 3, n);
        Randomize(&by_value, dtype);
        Check(by_value, dtype, {{}, false, n % 3});
      }
    }
  }
}

TEST(Attention, WideValues) {
  for (const DType dtype : AllDTypes()) {
    for (const std::size_t queries : {1u, 2u, 4u, 8u, 70u}) {
      AttentionCase c = Sized(queries, 11, 130, 141);
      Randomize(&c, dtype);
      Check(c, dtype);
    }
  }
}

TEST(Attention, EveryLengthAroundTheTiles) {
  for (const DType dtype : AllDTypes()) {
    for (const std::size_t queries :
         {1u, 2u, 5u, 15u, 16u, 17u, 31u, 32u, 33u, 49u, 63u, 64u, 65u, 130u}) {
      for (const std::size_t keys : {0u, 1u, 5u, 6u, 7u, 95u, 96u, 97u, 193u, 257u}) {
        AttentionCase c = Sized(queries, keys, 8, 5);
        Randomize(&c, dtype);
        Check(c, dtype);
      }
    }
  }
}

TEST(Attention, TilesOfManyRows) {
  for (const DType dtype : AllDTypes()) {
    for (const std::size_t queries : {143u, 145u, 288u, 289u}) {
      AttentionCase c = Sized(queries, 130, 5, 3, 4, 4, 4, 2);
      c.causal = true;
      c.offset = 130 - static_cast<std::int64_t>(queries);
      c.window = 70;
      Randomize(&c, dtype);
      Check(c, dtype);
    }
  }
}

TEST(Attention, CausalAndWindowsInBothAlignments) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (const std::size_t queries : {1u, 3u, 70u, 100u}) {
      for (const std::size_t keys : {1u, 4u, 97u, 220u}) {
        for (const std::int64_t window : {0, 1, 3, 40, 1000}) {
          for (const bool causal : {false, true}) {
            for (const bool lower_right : {false, true}) {
              AttentionCase c = Sized(queries, keys, 4, 3);
              c.causal = causal;
              c.window = window;
              c.offset = lower_right
                             ? static_cast<std::int64_t>(keys) - static_cast<std::int64_t>(queries)
                             : 0;
              Randomize(&c, dtype);
              Check(c, dtype);
            }
          }
        }
      }
    }
  }
}

TEST(Attention, GroupedHeads) {
  for (const DType dtype : AllDTypes()) {
    for (const std::size_t queries : {1u, 2u, 9u, 33u}) {
      for (const auto& heads : std::vector<std::vector<std::size_t>>{
               {4, 4, 4}, {4, 2, 2}, {4, 1, 1}, {4, 1, 2}, {4, 2, 1}, {12, 4, 6}, {8, 1, 1}}) {
        AttentionCase c = Sized(queries, 21, 6, 7, heads[0], heads[1], heads[2], 2);
        c.causal = queries > 1;
        c.offset = 21 - static_cast<std::int64_t>(queries);
        Randomize(&c, dtype);
        c.sinks = Normal(c.heads, 9);
        for (double& sink : c.sinks) sink = Quantize(sink, WideDType(dtype));
        Check(c, dtype);
      }
    }
  }
}

TEST(Attention, MasksOfEveryKindAndBroadcast) {
  for (const DType dtype : AllDTypes()) {
    for (const std::size_t queries : {1u, 5u, 40u}) {
      for (unsigned axes = 0; axes < 16; ++axes) {
        const MaskAxes real = {(axes & 1) != 0, (axes & 2) != 0, (axes & 4) != 0, (axes & 8) != 0};
        AttentionCase c = Sized(queries, 101, 4, 3, 4, 2, 2, 2);
        // A given mask is used alone.
        c.causal = true;
        Randomize(&c, dtype);
        const std::size_t count = c.batch * c.heads * c.queries * c.keys;
        const auto random = Tensor(dtype, Normal(count, 5)).Values();
        const auto at = [&](std::size_t i) {
          const std::size_t k = i % c.keys, q = i / c.keys % c.queries;
          const std::size_t h = i / c.keys / c.queries % c.heads;
          const std::size_t b = i / c.keys / c.queries / c.heads;
          return (((real.batch ? b : 0) * c.heads + (real.head ? h : 0)) * c.queries +
                  (real.query ? q : 0)) *
                     c.keys +
                 (real.key ? k : 0);
        };
        for (std::size_t i = 0; i < count; ++i) c.bool_mask.push_back(random[at(i)] > 0 ? 3 : 0);
        Check(c, dtype, {real, false, 0});
        c.bool_mask.clear();
        for (std::size_t i = 0; i < count; ++i) c.float_mask.push_back(random[at(i)]);
        Check(c, dtype, {real, false, 1});
        Check(c, dtype, {real, true, 1});
      }
    }
  }
}

TEST(Attention, SoftcapComesBeforeTheMask) {
  for (const DType dtype : AllDTypes()) {
    for (const std::size_t queries : {1u, 30u}) {
      AttentionCase c = Sized(queries, 50, 16, 8);
      c.scale = 2;
      c.softcap = 3;
      c.causal = true;
      c.offset = 50 - static_cast<std::int64_t>(queries);
      Randomize(&c, dtype);
      Check(c, dtype);
    }
  }
}

TEST(Attention, FullyMaskedRowsAreZero) {
  for (const DType dtype : AllDTypes()) {
    for (const std::size_t queries : {2u, 3u, 30u}) {
      AttentionCase c = Sized(queries, 100, 4, 5);
      Randomize(&c, dtype);
      c.bool_mask.assign(queries * 100, 1);
      std::fill_n(c.bool_mask.begin(), 100, 0);                     // row 0: all of it
      std::fill_n(c.bool_mask.begin() + 100, 97, std::uint8_t{0});  // row 1: its first tile
      Check(c, dtype);
      for (const std::uint8_t attend : c.bool_mask) {
        c.float_mask.push_back(attend != 0 ? 0 : -INFINITY);
      }
      c.bool_mask.clear();
      Check(c, dtype);
      c.sinks = {0.5};
      Check(c, dtype);
      c.sinks = {-INFINITY};  // a sink that weighs nothing
      Check(c, dtype);
    }
  }
}

// One query, one dimension: the keys are the logits.
AttentionCase Logits(const std::vector<double>& logits, std::size_t queries, DType dtype) {
  AttentionCase c = Sized(queries, logits.size(), 1, 1);
  c.query.assign(queries, 1.0);
  for (const double logit : logits) c.key.push_back(Quantize(logit, dtype));
  for (std::size_t i = 0; i < logits.size(); ++i) c.value.push_back(static_cast<double>(i % 7));
  return c;
}

TEST(Attention, ExtremeLogits) {
  for (const DType dtype : AllDTypes()) {
    for (const std::size_t queries : {1u, 2u, 20u}) {
      Check(Logits({-10000, 10000, 9999, 0}, queries, dtype), dtype);
      Check(Logits(std::vector<double>(300, -10000), queries, dtype), dtype);
      std::vector<double> rising(300);
      for (std::size_t i = 0; i < 300; ++i) rising[i] = static_cast<double>(i) * 32 - 4800;
      Check(Logits(rising, queries, dtype), dtype);
      std::reverse(rising.begin(), rising.end());
      Check(Logits(rising, queries, dtype), dtype);
      AttentionCase sunk = Logits({1, 2, 3}, queries, dtype);
      sunk.sinks = {10000};  // takes all the weight
      Check(sunk, dtype);
    }
  }
}

TEST(Attention, NanAndInfinityPropagate) {
  for (const DType dtype : AllDTypes()) {
    for (const std::size_t queries : {1u, 2u, 20u}) {
      for (const double bad : {double{NAN}, double{INFINITY}}) {
        for (const std::size_t at : {0u, 50u, 150u}) {
          std::vector<double> logits(151, 0.25);
          logits[at] = bad;
          Check(Logits(logits, queries, dtype), dtype);
          // Masked, a bad score is gone.
          AttentionCase masked = Logits(logits, queries, dtype);
          masked.bool_mask.assign(queries * 151, 1);
          for (std::size_t q = 0; q < queries; ++q) masked.bool_mask[q * 151 + at] = 0;
          Check(masked, dtype);
        }
        AttentionCase sink = Logits({1, 2}, queries, dtype);
        sink.sinks = {bad};
        Check(sink, dtype);
        AttentionCase value = Logits({1, 2}, queries, dtype);
        value.value[1] = bad;
        Check(value, dtype);
      }
    }
  }
}

TEST(Attention, DenormalsAreKept) {
  AttentionCase c = Sized(20, 9, 4, 3);
  Randomize(&c, DType::kFloat16);
  for (double& x : c.value) x = Quantize(x * 1e-7, DType::kFloat16);
  Check(c, DType::kFloat16);
}

}  // namespace
}  // namespace coreai::testing
