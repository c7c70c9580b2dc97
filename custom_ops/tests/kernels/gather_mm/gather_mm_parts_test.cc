// Products of float32 as sums of products of bfloat16. On every target by the model of tiles; what
// AMX itself gives is compared with that bit by bit.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/gather_mm/gather_mm_parts_test.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/gather_mm/gather_mm_parts-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

inline GatherMmOfParts ByModel() { return KernelsOfParts<ModelTiles>(); }

inline GatherMmOfParts ByTiles() { return KernelsOfParts<KernelTiles>(); }

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "reference/gather_mm.h"
#include "simd/dispatch.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

constexpr GatherMmOfParts (*kModel[])() = COREAI_TARGETS(ByModel);
constexpr GatherMmOfParts (*kAmx[])() = COREAI_TARGETS(ByTiles);

// Factors of a product, the result in double, and the sums of the magnitudes of its products.
struct Product {
  std::size_t rows, depth, columns;
  bool transposed;
  Tensor left, right;
  std::vector<double> want, magnitudes;

  Product(std::size_t m, std::size_t k, std::size_t n, bool is_transposed,
          const std::vector<double>& lefts, const std::vector<double>& rights)
      : rows(m),
        depth(k),
        columns(n),
        transposed(is_transposed),
        left(DType::kFloat32, lefts, 1),
        right(DType::kFloat32, rights, 1),
        want(GatherMmReference(left.Values(), right.Values(), m, k, n, is_transposed)) {
    std::vector<double> l = left.Values(), r = right.Values();
    for (double& x : l) x = std::fabs(x);
    for (double& x : r) x = std::fabs(x);
    magnitudes = GatherMmReference(l, r, m, k, n, is_transposed);
  }
};

struct Result {
  std::vector<float> output;
  std::vector<PartsRow> states;
};

Result Multiply(const GatherMmOfParts& kernels, const Product& p, std::size_t middle = 0) {
  const std::size_t left_bytes = PartsLeft().PackedRows(p.rows) * PartsLeft().RowBytes(p.depth);
  const Tensor packed_left(DType::kFloat32, left_bytes / 4);
  const Tensor packed_right(DType::kFloat32, PartsBytes(p.depth, p.columns) / 4);
  const Tensor scratch(DType::kFloat32, kPartsScratchBytes / 4);
  Result result = {std::vector<float>(p.rows * p.columns), std::vector<PartsRow>(p.rows)};
  std::vector<const void*> lefts;
  std::vector<void*> outputs;
  for (std::size_t r = 0; r < p.rows; ++r) {
    lefts.push_back(static_cast<const float*>(p.left.data()) + r * p.depth);
    outputs.push_back(result.output.data() + r * p.columns);
  }
  const PartsRange range = kernels.pack_right(static_cast<const float*>(p.right.data()), p.depth,
                                              p.columns, p.transposed, packed_right.data());
  EXPECT_TRUE(PartsFit(range, p.depth));
  kernels.pack_left(lefts.data(), p.rows, p.depth, ExactRowsOf(range), packed_left.data(),
                    result.states.data());
  PartsTile tile = {{lefts.data(), packed_left.data(), outputs.data(), packed_right.data(), p.rows,
                     p.depth, p.columns, 0, p.columns},
                    result.states.data()};
  if (middle != 0) {
    tile.product.last_column = middle;
    kernels.product(tile, scratch.data());
    tile.product.first_column = middle;
    tile.product.last_column = p.columns;
  }
  kernels.product(tile, scratch.data());
  return result;
}

// Calls `check(result)` with the results of every target.
template <class CheckResult>
void OnEveryTarget(const Product& p, const CheckResult& check, std::size_t middle = 0) {
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(::testing::Message() << TargetName(target) << ' ' << p.rows << 'x' << p.depth
                                      << 'x' << p.columns << ' ' << p.transposed);
    const auto at = static_cast<std::size_t>(target);
    const Result got = Multiply(kModel[at](), p, middle);
    check(got);
    if (target != Target::kAmx) continue;
    const Result native = Multiply(kAmx[at](), p, middle);
    ASSERT_EQ(got.states, native.states);
    ASSERT_EQ(0, std::memcmp(got.output.data(), native.output.data(), got.output.size() * 4));
  }
}

// The error of a result relative to the sum of the magnitudes of its products: parts leave 2^-24 of
// each. An element of a tile adds 16 one after the other, and four tiles are added; then blocks
// are.
void ExpectClose(const Product& p, const Result& got) {
  const double bound = (2 + 16 + 8 + static_cast<double>(p.depth / 128)) * 0x1p-24;
  for (std::size_t i = 0; i < got.output.size(); ++i) {
    ASSERT_LE(std::fabs(got.output[i] - p.want[i]), bound * p.magnitudes[i]) << i;
  }
}

void CheckAll(std::size_t rows, std::size_t depth, std::size_t columns, std::size_t middle = 0) {
  for (const bool transposed : {false, true}) {
    const Product p(rows, depth, columns, transposed, Normal(rows * depth, 5),
                    Normal(depth * columns, 6, 0, 0.05));
    OnEveryTarget(
        p,
        [&](const Result& got) {
          ExpectClose(p, got);
          ASSERT_EQ(got.states, std::vector<PartsRow>(p.rows, PartsRow::kExact));
        },
        middle);
  }
}

TEST(GatherMmParts, EveryNumberOfRows) {
  for (std::size_t rows = 1; rows <= 33; ++rows) CheckAll(rows, 5, 7);
  for (const std::size_t rows : {47u, 49u, 64u, 255u, 256u}) CheckAll(rows, 3, 17);
}

TEST(GatherMmParts, EveryNumberOfColumns) {
  for (std::size_t columns = 1; columns <= 33; ++columns) CheckAll(3, 6, columns);
  CheckAll(20, 3, 145, 64);
}

TEST(GatherMmParts, EveryDepth) {
  for (std::size_t depth = 1; depth <= 65; ++depth) CheckAll(2, depth, 5);
  // More than one block, and more than one span, whose sums are added to.
  for (const std::size_t depth : {127u, 129u, 767u, 769u, 1700u}) CheckAll(34, depth, 20);
}

TEST(GatherMmParts, ManyColumnsOfManySpans) { CheckAll(33, 800, 560, 544); }

TEST(GatherMmParts, RowsHaveTheSameBitsAloneAndTogether) {
  constexpr std::size_t kRows = 40, kDepth = 800, kColumns = 50;
  const std::vector<double> lefts = Normal(kRows * kDepth, 1);
  const Product all(kRows, kDepth, kColumns, false, lefts, Normal(kDepth * kColumns, 2));
  const Product one(1, kDepth, kColumns, false,
                    {lefts.end() - static_cast<std::ptrdiff_t>(kDepth), lefts.end()},
                    Normal(kDepth * kColumns, 2));
  const auto at = static_cast<std::size_t>(BestTarget());
  const Result together = Multiply(kModel[at](), all), alone = Multiply(kModel[at](), one);
  EXPECT_EQ(0, std::memcmp(alone.output.data(), together.output.data() + (kRows - 1) * kColumns,
                           kColumns * sizeof(float)));
}

// Sums of large products that cancel: the dropped products of parts are not seen.
TEST(GatherMmParts, ProductsThatCancel) {
  constexpr std::size_t kRows = 9, kDepth = 64, kColumns = 21;
  std::vector<double> left = Normal(kRows * kDepth, 3), right = Normal(kDepth * kColumns, 4);
  for (std::size_t k = 1; k < kDepth; k += 2) {
    for (std::size_t r = 0; r < kRows; ++r) {
      left[r * kDepth + k] = left[r * kDepth + k - 1] * (1 + 0x1p-12);
    }
    for (std::size_t c = 0; c < kColumns; ++c) {
      right[k * kColumns + c] = -right[(k - 1) * kColumns + c];
    }
  }
  const Product p(kRows, kDepth, kColumns, false, left, right);
  OnEveryTarget(p, [&](const Result& got) { ExpectClose(p, got); });
}

// Which rows have meaningless sums, and that those of the others are close.
TEST(GatherMmParts, RowsThatTilesCannotMultiply) {
  constexpr std::size_t kRows = 35, kDepth = 40, kColumns = 37;
  std::vector<double> left = Normal(kRows * kDepth, 1);
  const auto row = [&](std::size_t r) {
    return left.begin() + static_cast<std::ptrdiff_t>(r * kDepth);
  };
  *row(1) = INFINITY;
  *(row(2) + 7) = NAN;
  *(row(33) + 39) = 0x1p31;
  *(row(4) + 3) = 0x1p-140;  // beside others: lost, and of no importance
  std::transform(row(5), row(6), row(5), [](double x) { return x * 0x1p-100; });
  std::fill(row(6), row(7), 0.0);
  std::transform(row(34), row(34) + kDepth, row(34), [](double x) { return x * 0x1p-60; });
  const Product p(kRows, kDepth, kColumns, true, left, Normal(kDepth * kColumns, 2));
  OnEveryTarget(p, [&](const Result& got) {
    for (std::size_t r = 0; r < kRows; ++r) {
      const bool other = r == 1 || r == 2 || r == 33 || r == 5;
      const PartsRow want = other ? PartsRow::kOther : r == 4 ? PartsRow::kSmall : PartsRow::kExact;
      EXPECT_EQ(got.states[r], want) << r;
      for (std::size_t c = 0; c < kColumns && !other; ++c) {
        const std::size_t i = r * kColumns + c;
        EXPECT_LE(std::fabs(got.output[i] - p.want[i]), 30 * 0x1p-24 * p.magnitudes[i]) << i;
      }
    }
  });
}

TEST(GatherMmParts, RangesOfMatrices) {
  constexpr std::uint32_t kOne = 127u << 23;
  EXPECT_TRUE(PartsFit({kOne, kOne + (30u << 23)}, 1 << 20));
  EXPECT_FALSE(PartsFit({kOne, kOne + (30u << 23) + 1}, 8));
  EXPECT_FALSE(PartsFit({kOne, 255u << 23}, 8));  // infinity
  EXPECT_FALSE(PartsFit({kOne, kOne}, (1 << 20) + 1));
  EXPECT_EQ(ExactRowsOf({kOne, kOne}).smallest, (127u - 95u) << 23);
  EXPECT_EQ(ExactRowsOf({kOne - (40u << 23), kOne}).smallest, (127u - 55u) << 23);
  EXPECT_EQ(ExactRowsOf({1, kOne}).smallest, 0xFFFFFFFFu);  // subnormal
  EXPECT_EQ(ExactRowsOf({0xFFFFFFFFu, 0}).smallest, 0u);    // zeros
}

}  // namespace
}  // namespace coreai::testing
#endif
