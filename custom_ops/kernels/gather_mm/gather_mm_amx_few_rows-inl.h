// Products of few rows with a matrix that is packed as tiles, bound by reading it once. Fused
// multiply-adds: tiles would multiply rows of zeros. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATHER_MM_AMX_FEW_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATHER_MM_AMX_FEW_ROWS_INL_H_
#undef COREAI_KERNELS_GATHER_MM_AMX_FEW_ROWS_INL_H_
#else
#define COREAI_KERNELS_GATHER_MM_AMX_FEW_ROWS_INL_H_
#endif

#include "kernels/gather_mm/gather_mm_amx_pack-inl.h"
#include "kernels/gather_mm/gather_mm_few_rows-inl.h"
#include "kernels/gather_mm/gather_mm_many-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// A vector of x[0], x[1], x[0], …, of the lanes from `lane` on.
template <class D>
HWY_INLINE hn::Vec<D> RepeatPair(D d, const float* HWY_RESTRICT x, size_t lane) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(d, x[lane % 2]);
#else
  const hn::Repartition<std::uint64_t, D> d64;
  std::uint64_t pair;
  hwy::CopyBytes<8>(x, &pair);
  (void)d, (void)lane;
  return hn::BitCast(d, hn::Set(d64, pair));
#endif
}

/// sums[r] += the products of 32 elements of the depth with one tile or, if there are sums for two,
/// with two; lanes are [16 columns, 2 elements].
template <typename T, size_t kRows, size_t kVecs, class V>
HWY_INLINE void AddTile(const float* const* HWY_RESTRICT left, size_t k,
                        const std::uint32_t* HWY_RESTRICT tile, V (&sums)[kRows][kVecs]) {
  const hn::ScalableTag<float> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  constexpr size_t kTileVecs = 2 * kAmxColumns / kLanes;
  constexpr size_t kBytesAhead = 4096;
  const auto* right = reinterpret_cast<const T*>(tile);
  for (size_t i = 0; i < kAmxPairDepth; i += 2, right += 2 * kAmxColumns) {
#pragma GCC unroll 8
    for (size_t v = 0; v < kVecs; ++v) {
      const size_t at = v / kTileVecs * (kAmxBytes / sizeof(T)) + v % kTileVecs * kLanes;
      if (v % kTileVecs == 0) {  // a line of the tile, not all at once: they wait for each other
        __builtin_prefetch(reinterpret_cast<const char*>(right + at) + kBytesAhead);
      }
      const auto b = LoadWide(d, right + at);
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) {
        sums[r][v] = hn::MulAdd(RepeatPair(d, left[r] + k + i, v * kLanes), b, sums[r][v]);
      }
    }
  }
}

/// The columns of kTiles tiles, one or a pair, which then are one stream of memory and enough sums
/// to hide the latency of the addition; tiles of the depth are `distance` words apart.
template <size_t kRows, size_t kTiles, typename T>
HWY_INLINE void MultiplyFewTiles(const GatherMmTile& t, size_t column, size_t distance,
                                 const std::uint32_t* HWY_RESTRICT tile) {
  const hn::ScalableTag<float> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  constexpr size_t kVecs = kTiles * 2 * kAmxColumns / kLanes;
  hn::Vec<decltype(d)> sums[kRows][kVecs];
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (size_t v = 0; v < kVecs; ++v) sums[r][v] = hn::Zero(d);
  }
  const auto* left = reinterpret_cast<const float* const*>(t.left);
  size_t k = 0;
  for (; k + kAmxPairDepth <= t.depth; k += kAmxPairDepth, tile += distance) {
    AddTile<T>(left, k, tile, sums);
  }
  if (k < t.depth) {
    alignas(64) float last[kRows][kAmxPairDepth] = {};
    const float* rows[kRows];
    for (size_t r = 0; r < kRows; ++r) {
      hwy::CopyBytes(left[r] + k, last[r], (t.depth - k) * sizeof(float));
      rows[r] = last[r];
    }
    AddTile<T>(rows, 0, tile, sums);
  }
  const size_t width = HWY_MIN(kTiles * kAmxColumns, t.last_column - column);
  for (size_t r = 0; r < kRows; ++r) {
    alignas(64) float pairs[kTiles * 2 * kAmxColumns];
    for (size_t v = 0; v < kVecs; ++v) hn::Store(sums[r][v], d, pairs + v * kLanes);
    for (size_t c = 0; c < kTiles * kAmxColumns; ++c) pairs[c] = pairs[2 * c] + pairs[2 * c + 1];
    ConvertRow(hn::ScalableTag<float>(), pairs, width, static_cast<T*>(t.output[r]) + column);
  }
}

/// Rows of t.left are float32.
template <size_t kRows, typename T>
void MultiplyFewTiles(const GatherMmTile& t) {
  const size_t steps = AmxSteps(t.depth);
  const auto* right = static_cast<const std::uint32_t*>(t.right);
  for (size_t column = t.first_column; column < t.last_column;) {
    const size_t pair = column / kAmxPair * kAmxPair;
    const size_t tiles = AmxTilesOfPair(pair, t.columns);
    const size_t first = pair / kAmxColumns * steps + column / kAmxColumns % 2;
    const std::uint32_t* const tile = right + first * kAmxWords;
    if (column == pair && column + kAmxColumns < t.last_column) {
      MultiplyFewTiles<kRows, 2, T>(t, column, tiles * kAmxWords, tile);
      column += kAmxPair;
    } else {
      MultiplyFewTiles<kRows, 1, T>(t, column, tiles * kAmxWords, tile);
      column += kAmxColumns;
    }
  }
}

/// The same in every layout, without tiles.
template <size_t kRows, typename T, GatherMmLayout kLayout>
void MultiplyFewOf(const GatherMmTile& t, void* scratch) {
  if constexpr (kLayout == GatherMmLayout::kRows) MultiplyFew<kRows, T>(t, scratch);
  if constexpr (kLayout == GatherMmLayout::kTransposed) MultiplyFewTransposed<kRows, T>(t);
  if constexpr (kLayout == GatherMmLayout::kPacked) MultiplyFewTiles<kRows, T>(t);
}

template <typename T, GatherMmLayout kLayout>
void MultiplyFewOf(const GatherMmTile& t, void* scratch) {
  static_assert(kGatherMmFewRows == 4, "one case for each");
  switch (t.rows) {
    case 1:
      return MultiplyFewOf<1, T, kLayout>(t, scratch);
    case 2:
      return MultiplyFewOf<2, T, kLayout>(t, scratch);
    case 3:
      return MultiplyFewOf<3, T, kLayout>(t, scratch);
    default:
      return MultiplyFewOf<4, T, kLayout>(t, scratch);
  }
}

/// The same for rows of bfloat16, widened in the scratch memory. Returns whether they fit into it.
template <GatherMmLayout kLayout>
bool MultiplyFewWidened(const GatherMmTile& t, void* scratch) {
  auto* wide = static_cast<float*>(scratch) + kGatherMmFewRows * kFewColumns;
  if ((kFewColumns + t.depth) * kGatherMmFewRows * sizeof(float) > kGatherMmScratchBytes) {
    return false;
  }
  const void* rows[kGatherMmFewRows];
  for (size_t r = 0; r < t.rows; ++r, wide += t.depth) {
    const auto* row = static_cast<const hwy::bfloat16_t*>(t.left[r]);
    rows[r] = wide;
    ConvertRow(hn::ScalableTag<float>(), row, t.depth, wide);
  }
  GatherMmTile widened = t;
  widened.left = rows;
  MultiplyFewOf<hwy::bfloat16_t, kLayout>(widened, scratch);
  return true;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
