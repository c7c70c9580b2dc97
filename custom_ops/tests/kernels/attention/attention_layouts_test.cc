#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_case.h"

namespace coreai::testing {
namespace {

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

}  // namespace
}  // namespace coreai::testing
