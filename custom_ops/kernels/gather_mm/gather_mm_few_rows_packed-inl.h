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

// Number of panels that are multiplied together: enough sums to hide the latency of the addition.
template <size_t kRows>
inline constexpr size_t kFewPanels = kRows == 1   ? 4
                                     : kRows == 2 ? 2
                                                  : 1;

/// kPanels panels of the matrix times kRows rows. Sums are those of MultiplyMany, bit by bit: steps
/// of k in order, in blocks of kPanelDepth.
template <size_t kRows, size_t kPanels, size_t kVecs, typename T>
HWY_INLINE void MultiplyFewPanels(const GatherMmTile& t, size_t column, size_t width) {
  using W = Wide<T>;
  const hn::ScalableTag<W> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  constexpr size_t kWidth = kVecs * kLanes;
  const auto* left = reinterpret_cast<const W* const*>(t.left);
  const T* first_panel = static_cast<const T*>(t.right) + column * t.depth;
  const size_t stride = kWidth * t.depth;  // from panel to panel
  hn::Vec<decltype(d)> totals[kPanels][kRows][kVecs];
  for (size_t p = 0; p < kPanels; ++p) {
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t v = 0; v < kVecs; ++v) totals[p][r][v] = hn::Zero(d);
    }
  }
  for (size_t first = 0; first < t.depth; first += kPanelDepth) {
    const size_t last = HWY_MIN(first + kPanelDepth, t.depth);
    hn::Vec<decltype(d)> sums[kPanels][kRows][kVecs];
#pragma GCC unroll 4
    for (size_t p = 0; p < kPanels; ++p) {
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (size_t v = 0; v < kVecs; ++v) sums[p][r][v] = hn::Zero(d);
      }
    }
    for (size_t k = first; k < last; ++k) {
#pragma GCC unroll 4
      for (size_t p = 0; p < kPanels; ++p) {
        const T* panel = first_panel + p * stride + k * kWidth;
        const char* ahead = reinterpret_cast<const char*>(panel) + kBytesAhead;
        for (size_t at = 0; at < kWidth * sizeof(T); at += 64) __builtin_prefetch(ahead + at);
#pragma GCC unroll 4
        for (size_t v = 0; v < kVecs; ++v) {
          const auto b = LoadWide(d, panel + v * kLanes);
#pragma GCC unroll 4
          for (size_t r = 0; r < kRows; ++r) {
            sums[p][r][v] = hn::MulAdd(hn::Set(d, left[r][k]), b, sums[p][r][v]);
          }
        }
      }
    }
#pragma GCC unroll 4
    for (size_t p = 0; p < kPanels; ++p) {
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (size_t v = 0; v < kVecs; ++v) {
          // The first block is not added to zero, which would turn a sum of -0 into 0.
          totals[p][r][v] = first == 0 ? sums[p][r][v] : hn::Add(sums[p][r][v], totals[p][r][v]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t p = 0; p < kPanels; ++p) {
      T* out = static_cast<T*>(t.output[r]) + column + p * kWidth;
#pragma GCC unroll 4
      for (size_t v = 0; v < kVecs; ++v) {
        const size_t before = (p * kVecs + v) * kLanes;
        StoreNarrowN(totals[p][r][v], d, out + v * kLanes, HWY_MIN(kLanes, width - before));
      }
    }
  }
}

template <size_t kRows, typename T>
void MultiplyFewPacked(const GatherMmTile& t) {
  using W = Wide<T>;
  constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<W>());
  constexpr size_t kWidth = kPanelWidth<W>;
  constexpr size_t kTogether = kFewPanels<kRows> * kWidth;
  size_t column = t.first_column;
  for (; column + kTogether <= t.last_column; column += kTogether) {
    MultiplyFewPanels<kRows, kFewPanels<kRows>, kPanelVecs, T>(t, column, kTogether);
  }
  for (; column < t.last_column; column += kWidth) {
    const size_t width = HWY_MIN(kWidth, t.last_column - column);
    switch ((width + kLanes - 1) / kLanes) {
      case 1:
        MultiplyFewPanels<kRows, 1, 1, T>(t, column, width);
        break;
      case 2:
        MultiplyFewPanels<kRows, 1, 2, T>(t, column, width);
        break;
      default:
        MultiplyFewPanels<kRows, 1, kPanelVecs, T>(t, column, width);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
