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

// The tokens of a case in blocks of a pool, in no order, and the other blocks NaN.
std::vector<double> Pool(const std::vector<double>& tokens, std::size_t heads, std::size_t keys,
                         std::size_t dim, const std::vector<std::int64_t>& table,
                         std::size_t block) {
  std::vector<double> pool(2 * table.size() * block * heads * dim, NAN);
  for (std::size_t i = 0; i < tokens.size() / std::max<std::size_t>(1, dim); ++i) {
    const std::size_t key = i % keys, head = i / keys % heads, batch = i / keys / heads;
    const auto at = static_cast<std::size_t>(table[(batch * keys + key) / block]);
    std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(i * dim), dim,
                pool.begin() +
                    static_cast<std::ptrdiff_t>(((at * block + key % block) * heads + head) * dim));
  }
  return pool;
}

TEST(Attention, KeysInBlocksGiveTheSameBits) {
  for (const DType dtype : AllDTypes())
    for (const std::size_t queries : {1, 3, 40})
      for (const unsigned shift : {0u, 4u})
        for (const bool deterministic : {false, true}) {
          AttentionCase c = Sized(queries, 144, 20, 17, 6, 2, 3, 2);
          Randomize(&c, dtype);
          const std::size_t block = std::size_t{1} << shift;
          std::vector<std::int64_t> table(c.batch * c.keys / block);
          for (std::size_t i = 0; i < table.size(); ++i) {
            table[i] = static_cast<std::int64_t>((i * 11 + 5) % table.size() * 2);
          }
          AttentionCase paged = c;
          paged.key = Pool(c.key, c.key_heads, c.keys, c.head_dim, table, block);
          paged.value = Pool(c.value, c.value_heads, c.keys, c.value_dim, table, block);
          // Rows of different lengths: the rest is hidden, and so is what a window is beyond.
          std::vector<std::uint8_t> mask(c.batch * c.keys, 0);
          std::fill(mask.begin() + 30, mask.begin() + 101, std::uint8_t{1});
          std::fill(mask.begin() + 144, mask.begin() + 150, std::uint8_t{1});
          const AttentionTensors flat(c, dtype, 1), blocks(paged, dtype, 1);
          const std::size_t size = c.batch * c.heads * c.queries * c.value_dim;
          for (const Target target : SupportedTargets()) {
            SCOPED_TRACE(Describe(c, target, dtype));
            const Tensor want(dtype, size), got(dtype, size);
            AttentionProblem problem = ProblemOf(c, flat, want);
            problem.mask = {MaskKind::kBool, mask.data(), c.keys, 0, 0, 1};
            problem.deterministic = deterministic;
            RunAll(FindAttention(target, dtype), problem, dtype);
            problem.key = blocks.key.data();
            problem.value = blocks.value.data();
            problem.output = got.data();
            problem.blocks = {table.data(), c.keys / block, shift};
            RunAll(FindAttention(target, dtype), problem, dtype);
            EXPECT_EQ(got.Values(), want.Values());
            for (const double x : got.Values()) EXPECT_TRUE(std::isfinite(x));
          }
        }
}

// [outer, rows, columns, dim] with the axes in the middle swapped.
std::vector<double> Swapped(const std::vector<double>& x, std::size_t rows, std::size_t columns,
                            std::size_t dim) {
  std::vector<double> out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t row = i / dim / columns % rows, column = i / dim % columns;
    const std::size_t outer = i / dim / columns / rows;
    out[((outer * columns + column) * rows + row) * dim + i % dim] = x[i];
  }
  return out;
}

TEST(Attention, HeadsBehindTokensGiveTheSameBits) {
  for (const DType dtype : AllDTypes())
    for (const std::size_t queries : {1, 2, 3, 40, 150})
      for (const std::size_t key_heads : {2, 6})
        for (const bool deterministic : {false, true}) {
          AttentionCase c = Sized(queries, 130, 20, 17, 6, key_heads, key_heads, 2);
          Randomize(&c, dtype);
          AttentionCase turned = c;
          turned.query = Swapped(c.query, c.heads, c.queries, c.head_dim);
          turned.key = Swapped(c.key, c.key_heads, c.keys, c.head_dim);
          turned.value = Swapped(c.value, c.value_heads, c.keys, c.value_dim);
          const AttentionTensors flat(c, dtype, 1), rows(turned, dtype, 1);
          const std::size_t size = c.batch * c.heads * c.queries * c.value_dim;
          for (const Target target : SupportedTargets()) {
            SCOPED_TRACE(Describe(c, target, dtype));
            const Tensor want(dtype, size), got(dtype, size);
            AttentionProblem problem = ProblemOf(c, flat, want);
            problem.deterministic = deterministic;
            RunAll(FindAttention(target, dtype), problem, dtype);
            problem = ProblemOf(c, rows, got);
            problem.deterministic = deterministic;
            problem.bshd = true;
            RunAll(FindAttention(target, dtype), problem, dtype);
            const Tensor all(dtype, Swapped(got.Values(), c.queries, c.heads, c.value_dim));
            // Heads that share keys may take another path than each of them alone.
            if (key_heads == 6 || queries == 1 || queries == 150 || deterministic) {
              EXPECT_EQ(all.Values(), want.Values());
            } else {
              ExpectNear(all, want.Values(), dtype);
            }
          }
        }
}

// Random codes and scales; sets the keys or values of a case to their values.
struct Codes {
  std::vector<std::uint8_t> bytes;
  std::vector<double> scales;

  Codes(std::vector<double>* values, std::size_t dim, unsigned bits, DType dtype, unsigned seed) {
    const std::size_t rows = dim == 0 ? 0 : values->size() / dim, width = dim * bits / 8;
    for (const double x : Normal(rows, seed)) scales.push_back(std::abs(x) / 64);
    scales = Tensor(dtype, scales).Values();
    bytes.resize(rows * width);
    unsigned state = seed;
    for (auto& byte : bytes)
      byte = static_cast<std::uint8_t>((state = state * 1103515245 + 12345) >> 16);
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t i = 0; i < dim; ++i) {
        const unsigned byte = bytes[row * width + i % width];
        const unsigned code = bits == 8 ? byte : i < width ? byte & 15 : byte >> 4;
        (*values)[row * dim + i] = (static_cast<double>(code) - (1 << (bits - 1))) * scales[row];
      }
    }
  }
};

TEST(Attention, KeysAndValuesOfFewBits) {
  for (const DType dtype : AllDTypes())
    for (const unsigned bits : {8u, 4u})
      for (const std::size_t dim : {2u, 30u, 32u, 64u, 130u})
        for (const std::size_t queries : {1u, 2u, 40u})
          for (const bool deterministic : {false, true}) {
            AttentionCase c = Sized(queries, 301, dim, dim + 2, 6, 2, 3, 2);
            Randomize(&c, dtype);
            const Codes keys(&c.key, dim, bits, dtype, 5),
                values(&c.value, dim + 2, bits, dtype, 6);
            c.causal = true;
            c.offset = 301 - static_cast<std::int64_t>(queries);
            c.window = queries == 2 ? 50 : 0;
            const auto want = AttentionReference(c);
            const AttentionTensors tensors(c, dtype, 1);
            const Tensor key_scales(dtype, keys.scales), value_scales(dtype, values.scales);
            for (const Target target : SupportedTargets()) {
              SCOPED_TRACE(Describe(c, target, dtype));
              const Tensor output(dtype, want.size());
              AttentionProblem problem = ProblemOf(c, tensors, output);
              problem.key = problem.value = nullptr;
              problem.codes = {bits, keys.bytes.data(), values.bytes.data(), key_scales.data(),
                               value_scales.data()};
              problem.deterministic = deterministic;
              RunAll(FindAttentionNbits(target, dtype, bits), problem, dtype);
              ExpectNear(output, want, dtype);
            }
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
