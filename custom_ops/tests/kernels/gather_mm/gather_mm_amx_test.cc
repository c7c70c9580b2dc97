// Products of bfloat16 and float16 by tile registers. On every target by their model; what AMX
// itself gives is compared with that bit by bit.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/gather_mm/gather_mm_amx_test.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/gather_mm/gather_mm_amx-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

template <class Tiles>
GatherMmKernel KernelOf(DType dtype, GatherMmLayout layout) {
  return dtype == DType::kFloat16 ? ProductOfTiles<Tiles, hwy::float16_t>(layout)
                                  : ProductOfTiles<Tiles, hwy::bfloat16_t>(layout);
}

inline GatherMmKernel KernelOfModel(DType dtype, GatherMmLayout layout) {
  return KernelOf<ModelTiles>(dtype, layout);
}

inline GatherMmKernel KernelOfAmx(DType dtype, GatherMmLayout layout) {
  return KernelOf<KernelTiles>(dtype, layout);
}

inline GatherMmPackLeftKernel PackRows(DType dtype) {
  return dtype == DType::kFloat16 ? PackAmxLeft<hwy::float16_t> : PackAmxLeft<hwy::bfloat16_t>;
}

inline GatherMmPackRightKernel PackMatrix(bool transposed) {
  return transposed ? PackAmxRight<true> : PackAmxRight<false>;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "reference/gather_mm.h"
#include "simd/dispatch.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

using Choose = GatherMmKernel (*)(DType, GatherMmLayout);
constexpr Choose kModel[] = COREAI_TARGETS(KernelOfModel);
constexpr Choose kAmx[] = COREAI_TARGETS(KernelOfAmx);
constexpr GatherMmPackLeftKernel (*kPackLeft[])(DType) = COREAI_TARGETS(PackRows);
constexpr GatherMmPackRightKernel (*kPackRight[])(bool) = COREAI_TARGETS(PackMatrix);

std::size_t Padded(std::size_t x, std::size_t step) { return (x + step - 1) / step * step; }

// Factors of a product, and the result in double.
struct Product {
  DType dtype;
  std::size_t rows, depth, columns;
  bool transposed;
  Tensor left, right;
  std::vector<double> want;

  Product(DType type, std::size_t m, std::size_t k, std::size_t n, bool is_transposed,
          const std::vector<double>& lefts, const std::vector<double>& rights)
      : dtype(type),
        rows(m),
        depth(k),
        columns(n),
        transposed(is_transposed),
        left(type == DType::kFloat16 ? DType::kFloat32 : type, Tensor(type, lefts).Values(), 1),
        right(type, rights, 1),
        want(GatherMmReference(left.Values(), right.Values(), m, k, n, is_transposed)) {}
};

std::vector<double> Run(GatherMmKernel kernel, DType dtype, GatherMmTile tile) {
  const Tensor output(dtype, tile.rows * tile.columns, 1);
  const Tensor scratch(DType::kFloat32, kGatherMmScratchBytes / 4);
  std::vector<void*> rows;
  for (std::size_t r = 0; r < tile.rows; ++r) {
    rows.push_back(static_cast<char*>(output.data()) + r * tile.columns * 2);
  }
  tile.output = rows.data();
  kernel(tile, scratch.data());
  return output.Values();
}

// The matrix is packed or not.
void Check(const Product& p, bool pack) {
  std::vector<const void*> lefts;
  for (std::size_t r = 0; r < p.rows; ++r) {
    const std::size_t bytes = p.depth * (p.dtype == DType::kFloat16 ? 4 : 2);
    lefts.push_back(static_cast<const char*>(p.left.data()) + r * bytes);
  }
  const GatherMmLayout layout = pack           ? GatherMmLayout::kPacked
                                : p.transposed ? GatherMmLayout::kTransposed
                                               : GatherMmLayout::kRows;
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(::testing::Message()
                 << TargetName(target) << ' ' << Name(p.dtype) << ' ' << p.rows << 'x' << p.depth
                 << 'x' << p.columns << ' ' << p.transposed << pack);
    const auto at = static_cast<std::size_t>(target);
    const std::size_t parts = p.dtype == DType::kFloat16 ? 2 : 1;
    const Tensor packed_left(p.dtype, Padded(p.rows, 16) * Padded(p.depth, 32) * parts);
    const Tensor packed_right(p.dtype, Padded(p.columns, 16) * Padded(p.depth, 32));
    kPackLeft[at](p.dtype)(lefts.data(), p.rows, p.depth, packed_left.data());
    kPackRight[at](p.transposed)(p.right.data(), p.depth, p.columns, packed_right.data());
    const GatherMmTile tile = {lefts.data(), packed_left.data(),
                               nullptr,      pack ? packed_right.data() : p.right.data(),
                               p.rows,       p.depth,
                               p.columns,    0,
                               p.columns};
    const auto got = Run(kModel[at](p.dtype, layout), p.dtype, tile);
    ExpectNear(Tensor(p.dtype, got), p.want, p.dtype);
    if (target != Target::kAmx) continue;
    const auto native = Run(kAmx[at](p.dtype, layout), p.dtype, tile);
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_TRUE(native[i] == got[i] || (std::isnan(native[i]) && std::isnan(got[i]))) << i;
    }
  }
}

void CheckAll(std::size_t rows, std::size_t depth, std::size_t columns) {
  const double deviation = 1 / std::sqrt(static_cast<double>(depth));
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const bool transposed : {false, true}) {
      const Product p(dtype, rows, depth, columns, transposed, Normal(rows * depth, 5),
                      Normal(depth * columns, 6, 0, deviation));
      for (const bool pack : {false, true}) Check(p, pack);
    }
  }
}

TEST(GatherMmAmx, EveryNumberOfRows) {
  for (std::size_t rows = 1; rows <= 33; ++rows) CheckAll(rows, 5, 7);
  for (const std::size_t rows : {47u, 49u, 64u, 255u, 256u}) CheckAll(rows, 3, 17);
}

TEST(GatherMmAmx, EveryNumberOfColumns) {
  for (std::size_t columns = 1; columns <= 33; ++columns) CheckAll(3, 6, columns);
  for (const std::size_t columns : {127u, 128u, 129u, 145u, 260u}) CheckAll(20, 3, columns);
}

TEST(GatherMmAmx, EveryDepth) {
  for (std::size_t depth = 1; depth <= 65; ++depth) CheckAll(2, depth, 5);
  // More than one block and more than one span, whose sums are added to.
  for (const std::size_t depth : {511u, 513u, 1024u, 1025u, 2100u}) CheckAll(34, depth, 20);
}

TEST(GatherMmAmx, ManyColumnsOfManySpans) { CheckAll(33, 1100, 560); }

// float16 has parts of which one is subnormal, infinite or NaN, or zero beside infinity.
TEST(GatherMmAmx, SubnormalInfiniteAndNanHalves) {
  constexpr std::size_t kDepth = 40, kColumns = 37;
  for (const std::size_t rows : {3u, 20u}) {
    for (const bool transposed : {false, true}) {
      std::vector<double> left = Normal(rows * kDepth, 1), right = Normal(kDepth * kColumns, 2);
      const auto at = [&](std::size_t k, std::size_t column) -> double& {
        return right[transposed ? column * kDepth + k : k * kColumns + column];
      };
      for (std::size_t k = 0; k < kDepth; ++k) left[k] = std::ldexp(left[k], -20);
      for (std::size_t k = 0; k < kDepth; ++k) at(k, 5) = 1000 * at(k, 5);
      left[kDepth + 7] = INFINITY;  // row 1
      left[2 * kDepth + 9] = NAN;   // row 2
      at(7, 0) = 1, at(7, 1) = -1.001, at(7, 2) = 0, at(7, 3) = -INFINITY, at(3, 4) = INFINITY;
      at(11, 35) = NAN, at(12, 36) = INFINITY, at(13, 36) = -INFINITY;
      const Product p(DType::kFloat16, rows, kDepth, kColumns, transposed, left, right);
      for (const bool pack : {false, true}) Check(p, pack);
    }
  }
}

// Sums of large products that cancel have the accuracy of float32, not of the parts.
TEST(GatherMmAmx, ProductsOfHalvesThatCancelAreExact) {
  constexpr std::size_t kRows = 9, kDepth = 64, kColumns = 21;
  std::vector<double> left(kRows * kDepth), right(kDepth * kColumns);
  const auto numbers = Tensor(DType::kFloat16, Normal(kDepth / 2, 3)).Values();
  for (std::size_t k = 0; k < kDepth; ++k) {
    for (std::size_t r = 0; r < kRows; ++r) left[r * kDepth + k] = 1 + 0x7Fp-10;
    for (std::size_t c = 0; c < kColumns; ++c) {
      right[k * kColumns + c] = k % 2 == 0 ? numbers[k / 2] : -numbers[k / 2];
    }
    if (k % 2 == 1) {
      for (std::size_t r = 0; r < kRows; ++r) left[r * kDepth + k] = 1 + 0x7Cp-10;
    }
  }
  const Product p(DType::kFloat16, kRows, kDepth, kColumns, false, left, right);
  for (const bool pack : {false, true}) Check(p, pack);
}

}  // namespace
}  // namespace coreai::testing
#endif
