// Products of few rows with a packed matrix, bound by reading it once. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATHER_MM_FEW_ROWS_PACKED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATHER_MM_FEW_ROWS_PACKED_INL_H_
#undef COREAI_KERNELS_GATHER_MM_FEW_ROWS_PACKED_INL_H_
#else
#define COREAI_KERNELS_GATHER_MM_FEW_ROWS_PACKED_INL_H_
#endif

#include "kernels/gather_mm/gather_mm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

// Prefetch distance of the matrix: a page, at whose end hardware prefetchers stop.
inline constexpr size_t kBytesAhead = 4096;

/// One panel of the matrix times kRows rows. Steps of k alternate between kTurns sums, enough to
/// hide the latency of the addition.
template <size_t kRows, size_t kVecs, typename T>
HWY_INLINE void MultiplyFewPanel(const GatherMmTile& t, size_t column, size_t width) {
  using W = Wide<T>;
  constexpr size_t kTurns = kRows == 1 ? 4 : kRows == 2 ? 2 : 1;
  const hn::ScalableTag<W> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  const auto* left = reinterpret_cast<const W* const*>(t.left);
  const T* panel = static_cast<const T*>(t.right) + column * t.depth;
  hn::Vec<decltype(d)> totals[kRows][kVecs];
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) totals[r][v] = hn::Zero(d);
  }
  const auto add = [&](size_t k, hn::Vec<decltype(d)>(&sums)[kRows][kVecs]) HWY_ATTR {
    const char* ahead = reinterpret_cast<const char*>(panel + k * kVecs * kLanes) + kBytesAhead;
    for (size_t at = 0; at < kVecs * kLanes * sizeof(T); at += 64) __builtin_prefetch(ahead + at);
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) {
      const auto b = LoadWide(d, panel + (k * kVecs + v) * kLanes);
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) {
        sums[r][v] = hn::MulAdd(hn::Set(d, left[r][k]), b, sums[r][v]);
      }
    }
  };
  for (size_t first = 0; first < t.depth; first += kPanelDepth) {
    const size_t last = HWY_MIN(first + kPanelDepth, t.depth);
    hn::Vec<decltype(d)> sums[kTurns][kRows][kVecs];
#pragma GCC unroll 4
    for (size_t turn = 0; turn < kTurns; ++turn) {
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (size_t v = 0; v < kVecs; ++v) sums[turn][r][v] = hn::Zero(d);
      }
    }
    size_t k = first;
    for (; k + kTurns <= last; k += kTurns) {
#pragma GCC unroll 4
      for (size_t turn = 0; turn < kTurns; ++turn) add(k + turn, sums[turn]);
    }
    for (; k < last; ++k) add(k, sums[0]);
#pragma GCC unroll 4
    for (size_t turn = 0; turn < kTurns; ++turn) {
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (size_t v = 0; v < kVecs; ++v) totals[r][v] = hn::Add(totals[r][v], sums[turn][r][v]);
      }
    }
  }
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
    T* out = static_cast<T*>(t.output[r]) + column;
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) {
      StoreNarrowN(totals[r][v], d, out + v * kLanes, HWY_MIN(kLanes, width - v * kLanes));
    }
  }
}

template <size_t kRows, typename T>
void MultiplyFewPacked(const GatherMmTile& t) {
  using W = Wide<T>;
  constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<W>());
  constexpr size_t kWidth = kPanelWidth<W>;
  for (size_t column = t.first_column; column < t.last_column; column += kWidth) {
    const size_t width = HWY_MIN(kWidth, t.last_column - column);
    switch ((width + kLanes - 1) / kLanes) {
      case 1:
        MultiplyFewPanel<kRows, 1, T>(t, column, width);
        break;
      case 2:
        MultiplyFewPanel<kRows, 2, T>(t, column, width);
        break;
      default:
        MultiplyFewPanel<kRows, kPanelVecs, T>(t, column, width);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
