// The register tile of matrix products. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATHER_MM_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATHER_MM_TILE_INL_H_
#undef COREAI_KERNELS_GATHER_MM_TILE_INL_H_
#else
#define COREAI_KERNELS_GATHER_MM_TILE_INL_H_
#endif

#include "kernels/gather_mm.h"
#include "simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

// Sums in registers: kSumRows rows of kPanelVecs vectors, 24 + 5 of 32 registers or 12 + 3 of 16.
inline constexpr size_t kSumRows = 6;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SCALAR
inline constexpr size_t kPanelVecs = 2;
#else
inline constexpr size_t kPanelVecs = 4;
#endif
template <typename W>
inline constexpr size_t kPanelWidth = kPanelVecs * hn::MaxLanes(hn::ScalableTag<W>());

// Depth of a packed panel, which then is a sixteenth of the second cache. Sums of blocks of this
// depth are added up, so that roundings do not grow with the whole depth.
inline constexpr size_t kPanelDepth = 256;

/// Memory to be fetched while something else is multiplied: `rows` pieces of `bytes` each.
struct Fetch {
  const char* row;
  size_t stride;  ///< bytes from piece to piece
  size_t bytes;
  size_t rows;
};

/// One block of k: its sums are added to `start` and stored.
template <typename W>
struct TileStep {
  const W* panel;      ///< [depth, kVecs vectors], aligned
  size_t first_depth;  ///< where the block begins in a row of the left factor
  size_t depth;
  const W* start;  ///< [rows, kVecs vectors], aligned; null for zero
  size_t width;    ///< columns to store
};

/// Adds left[i][first_depth + k] * panel[k, :] over the block for kRows rows, and stores row i at
/// store[i], from any address. Lanes of the last vector from `width` on are not stored.
template <size_t kRows, size_t kVecs, typename W>
HWY_INLINE void MultiplyTile(const TileStep<W>& step, const W* const* HWY_RESTRICT left,
                             W* const* HWY_RESTRICT store, size_t fetch_rows,
                             Fetch* HWY_RESTRICT fetch) {
  const hn::ScalableTag<W> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  constexpr size_t kWidth = kVecs * kLanes;
  hn::Vec<decltype(d)> sums[kRows][kVecs];
  const W* a[kRows];
#pragma GCC unroll 8
  for (size_t i = 0; i < kRows; ++i) {
    a[i] = left[i] + step.first_depth;
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) {
      sums[i][v] = hn::Zero(d);
    }
  }
  const W* panel = step.panel;
  const size_t depth = step.depth;
  const size_t every = fetch_rows == 0 ? depth : HWY_MAX(depth / fetch_rows, size_t{1});
  for (size_t k = 0; k < depth;) {
    const size_t stop = HWY_MIN(k + every, depth);
    for (; k < stop; ++k) {
      hn::Vec<decltype(d)> b[kVecs];
#pragma GCC unroll 4
      for (size_t v = 0; v < kVecs; ++v) b[v] = hn::Load(d, panel + k * kWidth + v * kLanes);
#pragma GCC unroll 8
      for (size_t i = 0; i < kRows; ++i) {
        const auto factor = hn::Set(d, a[i][k]);
#pragma GCC unroll 4
        for (size_t v = 0; v < kVecs; ++v) sums[i][v] = hn::MulAdd(factor, b[v], sums[i][v]);
      }
    }
    if (fetch_rows != 0) {
      for (size_t i = 0; i < fetch->bytes; i += 64) __builtin_prefetch(fetch->row + i, 0, 2);
      fetch->row += fetch->stride;
      --fetch->rows;
      --fetch_rows;
    }
  }
#pragma GCC unroll 8
  for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) {
      if (step.start != nullptr) {
        sums[i][v] = hn::Add(sums[i][v], hn::Load(d, step.start + i * kWidth + v * kLanes));
      }
      if (v + 1 < kVecs || step.width == kWidth) {
        hn::StoreU(sums[i][v], d, store[i] + v * kLanes);
      } else {
        hn::StoreN(sums[i][v], d, store[i] + v * kLanes, step.width - v * kLanes);
      }
    }
  }
}

/// MultiplyTile for up to kSumRows rows.
template <size_t kVecs, typename W>
void MultiplyTileRows(const TileStep<W>& step, const W* const* left, size_t rows, W* const* store,
                      size_t fetch_rows, Fetch* fetch) {
  switch (rows) {
    case 1:
      return MultiplyTile<1, kVecs>(step, left, store, fetch_rows, fetch);
    case 2:
      return MultiplyTile<2, kVecs>(step, left, store, fetch_rows, fetch);
    case 3:
      return MultiplyTile<3, kVecs>(step, left, store, fetch_rows, fetch);
    case 4:
      return MultiplyTile<4, kVecs>(step, left, store, fetch_rows, fetch);
    case 5:
      return MultiplyTile<5, kVecs>(step, left, store, fetch_rows, fetch);
    default:
      return MultiplyTile<kSumRows, kVecs>(step, left, store, fetch_rows, fetch);
  }
}

/// Stores `count` elements, rounded to T.
template <typename T, typename W>
HWY_INLINE void NarrowRow(const W* HWY_RESTRICT in, size_t count, T* HWY_RESTRICT out) {
  const hn::ScalableTag<W> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) StoreNarrow(hn::LoadU(d, in + i), d, out + i);
  if (i < count) StoreNarrowN(hn::LoadN(d, in + i, count - i), d, out + i, count - i);
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
