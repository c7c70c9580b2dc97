// Products of many rows with a matrix [depth, columns], whose panels are packed. Goto & van de
// Geijn 2008, "Anatomy of high-performance matrix multiplication". Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATHER_MM_MANY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATHER_MM_MANY_INL_H_
#undef COREAI_KERNELS_GATHER_MM_MANY_INL_H_
#else
#define COREAI_KERNELS_GATHER_MM_MANY_INL_H_
#endif

#include "kernels/gather_mm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Copies [depth, width] of a matrix, widened, into [depth, kVecs vectors], zeros at the end.
template <size_t kVecs, typename T>
HWY_INLINE void PackPanel(const T* HWY_RESTRICT in, size_t stride, size_t depth, size_t width,
                          Wide<T>* HWY_RESTRICT panel) {
  const hn::ScalableTag<Wide<T>> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  const size_t rest = width - (kVecs - 1) * kLanes;
  for (size_t k = 0; k < depth; ++k) {
#pragma GCC unroll 4
    for (size_t v = 0; v + 1 < kVecs; ++v) {
      hn::Store(LoadWide(d, in + v * kLanes), d, panel + v * kLanes);
    }
    const T* end = in + (kVecs - 1) * kLanes;
    const auto x = rest == kLanes ? LoadWide(d, end) : LoadWideN(d, end, rest);
    hn::Store(x, d, panel + (kVecs - 1) * kLanes);
    in += stride;
    panel += kVecs * kLanes;
  }
}

/// What one panel of the matrix contributes to all rows.
template <typename T>
struct PanelStep {
  size_t first_depth;
  size_t depth;
  size_t column;
  size_t width;
  bool last;  ///< sums are complete
};

template <size_t kVecs, typename T>
void MultiplyPanel(const PanelStep<T>& p, const GatherMmTile& t, void* scratch, Fetch fetch) {
  using W = Wide<T>;
  constexpr size_t kWidth = kVecs * hn::MaxLanes(hn::ScalableTag<W>());
  auto* panel = static_cast<W*>(scratch);
  W* sums = panel + kPanelDepth * kPanelWidth<W>;
  const T* in = static_cast<const T*>(t.right) + p.first_depth * t.columns + p.column;
  PackPanel<kVecs>(in, t.columns, p.depth, p.width, panel);

  const auto* left = reinterpret_cast<const W* const*>(t.left);
  const size_t blocks = (t.rows + kSumRows - 1) / kSumRows;
  const size_t share = (fetch.rows + blocks - 1) / blocks;
  for (size_t row = 0; row < t.rows; row += kSumRows) {
    const size_t count = HWY_MIN(t.rows - row, kSumRows);
    W* store[kSumRows];
    for (size_t i = 0; i < count; ++i) {
      store[i] = sums + (row + i) * kWidth;
      if constexpr (kIsWide<T>) {
        if (p.last) store[i] = static_cast<W*>(t.output[row + i]) + p.column;
      }
    }
    const TileStep<W> step = {panel, p.first_depth, p.depth,
                              p.first_depth == 0 ? nullptr : sums + row * kWidth,
                              p.last ? p.width : kWidth};
    MultiplyTileRows<kVecs>(step, left + row, count, store, HWY_MIN(share, fetch.rows), &fetch);
    if constexpr (!kIsWide<T>) {
      for (size_t i = 0; p.last && i < count; ++i) {
        NarrowRow(store[i], p.width, static_cast<T*>(t.output[row + i]) + p.column);
      }
    }
  }
}

template <typename T>
void MultiplyMany(const GatherMmTile& t, void* scratch) {
  using W = Wide<T>;
  constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<W>());
  constexpr size_t kWidth = kPanelWidth<W>;
  static_assert((kPanelDepth + kGatherMmMaxRows) * kWidth * sizeof(W) <= kGatherMmScratchBytes,
                "scratch is too small");
  for (size_t column = t.first_column; column < t.last_column; column += kWidth) {
    const size_t width = HWY_MIN(kWidth, t.last_column - column);
    for (size_t k = 0; k < t.depth; k += kPanelDepth) {
      const size_t depth = HWY_MIN(kPanelDepth, t.depth - k);
      const bool last = k + depth == t.depth;
      const PanelStep<T> step = {k, depth, column, width, last};
      const size_t next_k = last ? 0 : k + depth;
      const size_t next_column = last ? column + kWidth : column;
      Fetch fetch = {nullptr, t.columns * sizeof(T), kWidth * sizeof(T), 0};
      if (next_column + kWidth <= t.last_column) {
        fetch.row =
            static_cast<const char*>(t.right) + (next_k * t.columns + next_column) * sizeof(T);
        fetch.rows = HWY_MIN(kPanelDepth, t.depth - next_k);
      }
      switch ((width + kLanes - 1) / kLanes) {
        case 1:
          MultiplyPanel<1>(step, t, scratch, fetch);
          break;
        case 2:
          MultiplyPanel<2>(step, t, scratch, fetch);
          break;
        case 3:
          if constexpr (kPanelVecs > 2) MultiplyPanel<3>(step, t, scratch, fetch);
          break;
        default:
          if constexpr (kPanelVecs > 2) MultiplyPanel<4>(step, t, scratch, fetch);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
