// Products of bfloat16 by tile registers. On every target by their model; what AMX itself gives is
// compared with that bit by bit.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/gather_mm/gather_mm_amx_test.cc"
#include "hwy/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/gather_mm/gather_mm_amx-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

inline GatherMmKernel KernelOfModel(GatherMmLayout layout) {
  return GatherMmOfTilesFor<ModelTiles>(layout);
}

inline GatherMmKernel KernelOfAmx(GatherMmLayout layout) {
#if HWY_ARCH_X86_64
  return GatherMmOfTilesFor<AmxTiles>(layout);
#else
  return KernelOfModel(layout);
#endif
}

inline void PackRows(const void* const* left, size_t rows, size_t depth, void* packed) {
  PackAmxLeft(left, rows, depth, packed);
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

using Choose = GatherMmKernel (*)(GatherMmLayout);
constexpr Choose kModel[] = COREAI_TARGETS(KernelOfModel);
constexpr Choose kAmx[] = COREAI_TARGETS(KernelOfAmx);
constexpr GatherMmPackLeftKernel kPackLeft[] = COREAI_TARGETS(PackRows);
constexpr GatherMmPackRightKernel (*kPackRight[])(bool) = COREAI_TARGETS(PackMatrix);
constexpr DType kType = DType::kBFloat16;

std::size_t Padded(std::size_t x, std::size_t step) { return (x + step - 1) / step * step; }

std::vector<double> Product(GatherMmKernel kernel, GatherMmTile tile) {
  const Tensor output(kType, tile.rows * tile.columns, 1);
  const Tensor scratch(DType::kFloat32, kGatherMmScratchBytes / 4);
  std::vector<void*> rows;
  for (std::size_t r = 0; r < tile.rows; ++r) {
    rows.push_back(static_cast<char*>(output.data()) + r * tile.columns * 2);
  }
  tile.output = rows.data();
  kernel(tile, scratch.data());
  return output.Values();
}

// The two calls of a matrix that is given transposed or not, packed or not.
void Check(std::size_t rows, std::size_t depth, std::size_t columns, bool transposed, bool pack) {
  const double deviation = 1 / std::sqrt(static_cast<double>(depth));
  const Tensor left(kType, Normal(rows * depth, 5), 1);
  const Tensor right(kType, Normal(depth * columns, 6, 0, deviation), 1);
  const auto want =
      GatherMmReference(left.Values(), right.Values(), rows, depth, columns, transposed);
  std::vector<const void*> lefts;
  for (std::size_t r = 0; r < rows; ++r) {
    lefts.push_back(static_cast<const char*>(left.data()) + r * depth * 2);
  }
  const GatherMmLayout layout = pack         ? GatherMmLayout::kPacked
                                : transposed ? GatherMmLayout::kTransposed
                                             : GatherMmLayout::kRows;
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(::testing::Message() << TargetName(target) << ' ' << rows << 'x' << depth << 'x'
                                      << columns << ' ' << transposed << pack);
    const auto at = static_cast<std::size_t>(target);
    const Tensor packed_left(kType, Padded(rows, 16) * Padded(depth, 32));
    const Tensor packed_right(kType, Padded(columns, 16) * Padded(depth, 32));
    kPackLeft[at](lefts.data(), rows, depth, packed_left.data());
    kPackRight[at](transposed)(right.data(), depth, columns, packed_right.data());
    const GatherMmTile tile = {lefts.data(), packed_left.data(),
                               nullptr,      pack ? packed_right.data() : right.data(),
                               rows,         depth,
                               columns,      0,
                               columns};
    const auto got = Product(kModel[at](layout), tile);
    ExpectNear(Tensor(kType, got), want, kType);
    if (target != Target::kAmx) continue;
    EXPECT_EQ(Product(kAmx[at](layout), tile), got);
  }
}

void CheckAll(std::size_t rows, std::size_t depth, std::size_t columns) {
  for (const bool transposed : {false, true}) {
    for (const bool pack : {false, true}) Check(rows, depth, columns, transposed, pack);
  }
}

TEST(GatherMmAmx, EveryNumberOfRows) {
  for (std::size_t rows = 1; rows <= 33; ++rows) CheckAll(rows, 5, 7);
  for (const std::size_t rows : {47u, 49u, 64u, 191u, 192u}) CheckAll(rows, 3, 17);
}

TEST(GatherMmAmx, EveryNumberOfColumns) {
  for (std::size_t columns = 1; columns <= 33; ++columns) CheckAll(3, 6, columns);
  for (const std::size_t columns : {127u, 128u, 129u, 145u, 260u}) CheckAll(20, 3, columns);
}

TEST(GatherMmAmx, EveryDepth) {
  for (std::size_t depth = 1; depth <= 65; ++depth) CheckAll(2, depth, 5);
  // More than one chunk of a matrix that is packed on the way.
  for (const std::size_t depth : {767u, 768u, 769u, 1600u}) CheckAll(17, depth, 20);
}

}  // namespace
}  // namespace coreai::testing
#endif
