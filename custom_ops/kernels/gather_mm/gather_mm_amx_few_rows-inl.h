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

/// Prefetches what follows a line of a tile after a page. Lines are not prefetched all at once:
/// they wait for each other.
HWY_INLINE void PrefetchLine(const void* line) {
  constexpr size_t kBytesAhead = 4096;
  __builtin_prefetch(static_cast<const char*>(line) + kBytesAhead);
}

/// sums[r] += the products of 32 elements of the depth with as many tiles as there are sums for;
/// pairs of tiles are `stride` words apart. Lanes are [16 columns, 2 elements].
template <size_t kRows, size_t kVecs, class V>
HWY_INLINE void AddTiles(const float* const* HWY_RESTRICT left, size_t k,
                         const hwy::float16_t* HWY_RESTRICT right, size_t stride,
                         V (&sums)[kRows][kVecs]) {
  const hn::ScalableTag<float> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  constexpr size_t kTileVecs = 2 * kAmxColumns / kLanes;
  for (size_t i = 0; i < kAmxPairDepth; i += 2, right += 2 * kAmxColumns) {
#pragma GCC unroll 8
    for (size_t v = 0; v < kVecs; ++v) {
      const size_t tile = v / kTileVecs;
      const size_t at = 2 * (tile % 2 * kAmxWords + tile / 2 * stride) + v % kTileVecs * kLanes;
      if (v % kTileVecs == 0) PrefetchLine(right + at);
      const auto b = LoadWide(d, right + at);
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) {
        sums[r][v] = hn::MulAdd(RepeatPair(d, left[r] + k + i, v * kLanes), b, sums[r][v]);
      }
    }
  }
}

/// The same; the vectors of a tile are [2 elements, 16 columns], since two instructions widen both
/// elements where they are.
template <size_t kRows, size_t kVecs, class V>
HWY_INLINE void AddTiles(const float* const* HWY_RESTRICT left, size_t k,
                         const hwy::bfloat16_t* HWY_RESTRICT right, size_t stride,
                         V (&sums)[kRows][kVecs]) {
  const hn::ScalableTag<float> d;
  const hn::Repartition<std::uint32_t, decltype(d)> words;
  constexpr size_t kLanes = hn::MaxLanes(d);
  constexpr size_t kTileVecs = 2 * kAmxColumns / kLanes, kOdd = kTileVecs / 2;
  const auto* line = reinterpret_cast<const std::uint32_t*>(right);
  for (size_t i = 0; i < kAmxPairDepth; i += 2, line += kAmxColumns) {
#pragma GCC unroll 8
    for (size_t v = 0; v < kVecs; ++v) {
      const size_t tile = v / kTileVecs;
      if (v % kTileVecs >= kOdd) continue;
      const std::uint32_t* const from =
          line + tile % 2 * kAmxWords + tile / 2 * stride + v % kTileVecs * kLanes;
      if (v % kTileVecs == 0) PrefetchLine(from);
      const auto pairs = hn::LoadU(words, from);
      const auto even = hn::BitCast(d, hn::ShiftLeft<16>(pairs));
      const auto odd = hn::BitCast(d, hn::And(pairs, hn::Set(words, 0xFFFF0000u)));
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) {
        const float* const x = left[r] + k + i;
        sums[r][v] = hn::MulAdd(hn::Set(d, x[0]), even, sums[r][v]);
        sums[r][v + kOdd] = hn::MulAdd(hn::Set(d, x[1]), odd, sums[r][v + kOdd]);
      }
    }
  }
}

/// Stores the sums of both elements for the columns of a tile, at `out`.
template <class V, size_t kVecs>
HWY_INLINE void AddElements(const V (&sums)[kVecs], size_t tile, hwy::float16_t, float* out) {
  const hn::ScalableTag<float> d;
  constexpr size_t kTileVecs = 2 * kAmxColumns / hn::MaxLanes(d);
  alignas(64) float pairs[2 * kAmxColumns];
  for (size_t v = 0; v < kTileVecs; ++v) {
    hn::Store(sums[tile * kTileVecs + v], d, pairs + v * hn::MaxLanes(d));
  }
  for (size_t c = 0; c < kAmxColumns; ++c) out[c] = pairs[2 * c] + pairs[2 * c + 1];
}

template <class V, size_t kVecs>
HWY_INLINE void AddElements(const V (&sums)[kVecs], size_t tile, hwy::bfloat16_t, float* out) {
  const hn::ScalableTag<float> d;
  constexpr size_t kOdd = kAmxColumns / hn::MaxLanes(d);
  for (size_t v = 0; v < kOdd; ++v) {
    const size_t at = tile * 2 * kOdd + v;
    hn::Store(hn::Add(sums[at], sums[at + kOdd]), d, out + v * hn::MaxLanes(d));
  }
}

// Rows up to which two pairs of tiles are multiplied together, as two streams of memory; the sums
// of more do not fit into registers.
inline constexpr size_t kTwoPairsRows = 3;

/// The columns of kTiles tiles: one, a pair, which is one stream of memory and enough sums to hide
/// the latency of the addition, or two pairs, which are `stride` words apart; tiles of the depth
/// are `distance` words apart.
template <size_t kRows, size_t kTiles, typename T>
HWY_INLINE void MultiplyFewTiles(const GatherMmTile& t, size_t column, size_t distance,
                                 size_t stride, const std::uint32_t* HWY_RESTRICT tile) {
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
    AddTiles(left, k, reinterpret_cast<const T*>(tile), stride, sums);
  }
  if (k < t.depth) {
    alignas(64) float last[kRows][kAmxPairDepth] = {};
    const float* rows[kRows];
    for (size_t r = 0; r < kRows; ++r) {
      hwy::CopyBytes(left[r] + k, last[r], (t.depth - k) * sizeof(float));
      rows[r] = last[r];
    }
    AddTiles(rows, 0, reinterpret_cast<const T*>(tile), stride, sums);
  }
  const size_t width = HWY_MIN(kTiles * kAmxColumns, t.last_column - column);
  for (size_t r = 0; r < kRows; ++r) {
    alignas(64) float row[kTiles * kAmxColumns];
    for (size_t i = 0; i < kTiles; ++i) AddElements(sums[r], i, T(), row + i * kAmxColumns);
    ConvertRow(d, row, width, static_cast<T*>(t.output[r]) + column);
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
    const size_t distance = tiles * kAmxWords, stride = steps * distance;
    if constexpr (kRows <= kTwoPairsRows) {
      if (column == pair && column + 2 * kAmxPair <= t.last_column) {
        MultiplyFewTiles<kRows, 4, T>(t, column, distance, stride, tile);
        column += 2 * kAmxPair;
        continue;
      }
    }
    if (column == pair && column + kAmxColumns < t.last_column) {
      MultiplyFewTiles<kRows, 2, T>(t, column, distance, stride, tile);
      column += kAmxPair;
    } else {
      MultiplyFewTiles<kRows, 1, T>(t, column, distance, stride, tile);
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
