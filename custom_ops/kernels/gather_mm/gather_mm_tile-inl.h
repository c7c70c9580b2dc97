// The register tile of matrix products. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATHER_MM_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATHER_MM_TILE_INL_H_
#undef COREAI_KERNELS_GATHER_MM_TILE_INL_H_
#else
#define COREAI_KERNELS_GATHER_MM_TILE_INL_H_
#endif

#include "kernels/gather_mm/gather_mm.h"
#include "simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

// Sums in registers: kSumRows rows of kPanelVecs vectors, 24 + 4 of 32 registers or 12 + 3 of 16.
// The closer the two numbers are, the fewer loads a product needs.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SCALAR
inline constexpr size_t kSumRows = 6;
inline constexpr size_t kPanelVecs = 2;
#else
inline constexpr size_t kSumRows = 8;
inline constexpr size_t kPanelVecs = 3;
#endif
template <typename W>
inline constexpr size_t kPanelWidth = kPanelVecs * hn::MaxLanes(hn::ScalableTag<W>());

// Depth of a panel, which then fits into the first-level cache. Blocks of this depth are summed
// separately, so that rounding errors do not grow with the whole depth.
inline constexpr size_t kPanelDepth = 128;

// Prefetch distance of a panel's source to the first-level cache, in rows.
inline constexpr size_t kRowsAhead = 8;

/// Splits the rows of the left factor into as few tiles as possible, of nearly equal heights.
struct TileRows {
  size_t rows;   ///< of all tiles, more than kGatherMmFewRows
  size_t tiles;  ///<

  explicit TileRows(size_t all) : rows(all), tiles((all + kSumRows - 1) / kSumRows) {}
  /// The first row of a tile.
  size_t First(size_t tile) const { return tile * rows / tiles; }
};
// With more than kGatherMmFewRows rows, no tile has fewer rows than this.
inline constexpr size_t kLeastSumRows = kSumRows / 2;
static_assert(kGatherMmFewRows >= kLeastSumRows, "two tiles of them have kSumRows + 1 rows");

/// Memory to prefetch during other multiplications: rows, in pieces of four cache lines.
struct Fetch {
  const char* row = nullptr;
  size_t stride = 0;  ///< bytes from row to row
  size_t bytes = 0;   ///< of a row
  size_t at = 0;      ///< of the next piece in the row
  size_t pieces = 0;  ///< number of remaining pieces

  Fetch() = default;
  Fetch(const void* first_row, size_t rows, size_t row_stride, size_t row_bytes) {
    const size_t before = reinterpret_cast<size_t>(first_row) % 64;
    row = static_cast<const char*>(first_row) - before;
    stride = row_stride;
    bytes = before + row_bytes;
    pieces = rows * ((bytes + kPiece - 1) / kPiece);
  }

  HWY_INLINE void Next() {
    const size_t end = HWY_MIN(at + kPiece, bytes);
    for (; at < end; at += 64) __builtin_prefetch(row + at, 0, 2);
    --pieces;
    if (end == bytes) {
      row += stride;
      at = 0;
    }
  }

 private:
  static constexpr size_t kPiece = 256;
};

/// One block of k: its sums are added to `start` and stored.
template <typename W>
struct TileStep {
  const W* left;         ///< [depth, rows], packed
  W* panel;              ///< [depth, kVecs vectors], aligned
  const void* source;    ///< the source of the panel; null if the panel is already filled
  size_t source_stride;  ///< elements from row to row
  size_t depth;
  const W* start;   ///< [rows, kVecs vectors], aligned; null for zero
  W* const* store;  ///< the address of each row's sums, of any alignment
  size_t width;     ///< columns to store
};

/// Type of the source of a panel that is already filled.
struct NoSource {};

/// Adds left[k][i] * panel[k, :] over the block for kRows rows, and stores row i at store[i]. Lanes
/// of the last vector from `width` on are not stored. If the panel has a source of type T, it is
/// filled in the same loop.
template <typename T, size_t kRows, size_t kVecs, typename W>
HWY_NOINLINE void MultiplyTile(const TileStep<W>& step, size_t fetch_pieces,
                               Fetch* HWY_RESTRICT fetch) {
  constexpr bool kPack = !hwy::IsSame<T, NoSource>();
  const hn::ScalableTag<W> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  constexpr size_t kWidth = kVecs * kLanes;
  hn::Vec<decltype(d)> sums[kRows][kVecs];
#pragma GCC unroll 8
  for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) sums[i][v] = hn::Zero(d);
  }
  const W* HWY_RESTRICT left = step.left;
  W* HWY_RESTRICT panel = step.panel;
  const auto* HWY_RESTRICT source = static_cast<const T*>(step.source);
  size_t pieces = HWY_MIN(fetch_pieces, fetch->pieces);
  // The number of steps between pieces, or of pieces per step.
  const size_t steps = HWY_MAX(step.depth / HWY_MAX(pieces, size_t{1}), size_t{1});
  const size_t at_once = (pieces + step.depth - 1) / step.depth;
  for (size_t k = 0; k < step.depth;) {
    const size_t stop = HWY_MIN(k + steps, step.depth);
#pragma GCC unroll 2
    for (; k < stop; ++k) {
      hn::Vec<decltype(d)> b[kVecs];
#pragma GCC unroll 4
      for (size_t v = 0; v < kVecs; ++v) {
        if constexpr (kPack) {
          b[v] = LoadWide(d, source + v * kLanes);
          hn::Store(b[v], d, panel + v * kLanes);
        } else {
          b[v] = hn::Load(d, panel + v * kLanes);
        }
      }
      if constexpr (kPack) {
        // Rows of the source are pages apart, which hardware prefetchers do not follow.
        const char* next = reinterpret_cast<const char*>(source + kRowsAhead * step.source_stride);
        for (size_t at = 0; at < kWidth * sizeof(T); at += 64) __builtin_prefetch(next + at, 0, 3);
        source += step.source_stride;
      }
      panel += kWidth;
#pragma GCC unroll 8
      for (size_t i = 0; i < kRows; ++i) {
        const auto factor = hn::Set(d, left[i]);
#pragma GCC unroll 4
        for (size_t v = 0; v < kVecs; ++v) sums[i][v] = hn::MulAdd(factor, b[v], sums[i][v]);
      }
      left += kRows;
    }
    for (size_t i = 0; i < at_once && pieces != 0; ++i, --pieces) fetch->Next();
  }
#pragma GCC unroll 8
  for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) {
      if (step.start != nullptr) {
        sums[i][v] = hn::Add(sums[i][v], hn::Load(d, step.start + i * kWidth + v * kLanes));
      }
      if (v + 1 < kVecs || step.width == kWidth) {
        hn::StoreU(sums[i][v], d, step.store[i] + v * kLanes);
      } else {
        hn::StoreN(sums[i][v], d, step.store[i] + v * kLanes, step.width - v * kLanes);
      }
    }
  }
}

/// MultiplyTile for all possible heights of tiles.
template <typename T, size_t kVecs, typename W>
HWY_INLINE void MultiplyTileRows(const TileStep<W>& step, size_t rows, size_t fetch_pieces,
                                 Fetch* fetch) {
  static_assert(kLeastSumRows >= 3 && kSumRows <= 8, "one case for each");
  switch (rows) {
    case 3:
      if constexpr (kLeastSumRows <= 3) MultiplyTile<T, 3, kVecs>(step, fetch_pieces, fetch);
      return;
    case 4:
      return MultiplyTile<T, 4, kVecs>(step, fetch_pieces, fetch);
    case 5:
      return MultiplyTile<T, 5, kVecs>(step, fetch_pieces, fetch);
    case 6:
      return MultiplyTile<T, 6, kVecs>(step, fetch_pieces, fetch);
    case 7:
      if constexpr (kSumRows > 6) MultiplyTile<T, 7, kVecs>(step, fetch_pieces, fetch);
      return;
    default:
      if constexpr (kSumRows > 6) MultiplyTile<T, 8, kVecs>(step, fetch_pieces, fetch);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
