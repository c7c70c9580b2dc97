// Products of many rows with a matrix, panel by panel. Goto & van de Geijn 2008, "Anatomy of
// high-performance matrix multiplication". Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATHER_MM_MANY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATHER_MM_MANY_INL_H_
#undef COREAI_KERNELS_GATHER_MM_MANY_INL_H_
#else
#define COREAI_KERNELS_GATHER_MM_MANY_INL_H_
#endif

#include "kernels/gather_mm/gather_mm_pack-inl.h"
#include "kernels/gather_mm/gather_mm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Multiplies panels of the matrix one after the other, each by all rows while it is in the cache.
template <typename T>
class ManyRows {
 public:
  using W = Wide<T>;

  ManyRows(const GatherMmTile& t, GatherMmLayout layout, void* scratch)
      : t_(t),
        layout_(layout),
        group_(layout == GatherMmLayout::kRows ? kGroup * kWidth : kWidth),
        tiles_(t.rows),
        panel_(static_cast<W*>(scratch)),
        sums_(panel_ + kPanelDepth * kWidth) {
    static_assert(
        (kPanelDepth + kGroup * kGatherMmMaxRows) * kWidth * sizeof(W) <= kGatherMmScratchBytes,
        "scratch is too small");
    static_assert(kGatherMmColumnStep % kWidth == 0, "whole panels");
  }

  void Run() {
    for (size_t column = t_.first_column; column < t_.last_column; column += group_) {
      const size_t end = HWY_MIN(column + group_, t_.last_column);
      for (size_t k = 0; k < t_.depth; k += kPanelDepth) {
        const size_t depth = HWY_MIN(kPanelDepth, t_.depth - k);
        const bool last = k + depth == t_.depth;
        Fetch fetch = last ? FetchOf(0, end) : FetchOf(k + depth, column);
        const size_t runs = tiles_.tiles * ((end - column + kWidth - 1) / kWidth);
        share_ = (fetch.pieces + runs - 1) / runs;
        for (size_t c = column; c < end; c += kWidth) {
          Columns(c, HWY_MIN(kWidth, end - c), sums_ + (c - column) * t_.rows, k, depth, &fetch);
        }
      }
    }
  }

 private:
  static constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<W>());
  static constexpr size_t kWidth = kPanelWidth<W>;
  // Panels per group, for unpacked matrices [depth, columns]: their rows are pages apart, and a TLB
  // miss takes longer than fetching a line. As many as the scratch memory has sums for: 14 took
  // 0.96 times as long as 8 (64 rows of 1024 × 2816, pages of 4 KiB, AVX-512, 2026-11).
  static constexpr size_t kGroup = 14;
  static_assert(kPanelVecs == 2 || kPanelVecs == 3, "one case for each number of vectors");

  void Columns(size_t column, size_t width, W* sums, size_t k, size_t depth, Fetch* fetch) {
    switch ((width + kLanes - 1) / kLanes) {
      case 1:
        return Panel<1>(column, width, sums, k, depth, fetch);
      case 2:
        return Panel<2>(column, width, sums, k, depth, fetch);
      default:
        Panel<kPanelVecs>(column, width, sums, k, depth, fetch);
    }
  }

  const T* Right() const { return static_cast<const T*>(t_.right); }

  /// The memory to prefetch for the panels that begin at that column.
  Fetch FetchOf(size_t k, size_t column) const {
    if (column >= t_.last_column) return Fetch();
    const size_t width = HWY_MIN(group_, t_.last_column - column);
    const size_t depth = HWY_MIN(kPanelDepth, t_.depth - k);
    switch (layout_) {
      case GatherMmLayout::kRows:
        return Fetch(Right() + k * t_.columns + column, depth, t_.columns * sizeof(T),
                     width * sizeof(T));
      case GatherMmLayout::kTransposed:
        return Fetch(Right() + column * t_.depth + k, width, t_.depth * sizeof(T),
                     depth * sizeof(T));
      default: {
        const size_t packed = (width + kLanes - 1) / kLanes * kLanes;
        return Fetch(Right() + column * t_.depth + k * packed, 1, 0, depth * packed * sizeof(T));
      }
    }
  }

  /// Adds the products of the panel to the sums of all rows.
  template <size_t kVecs>
  void Panel(size_t column, size_t width, W* all_sums, size_t k, size_t depth, Fetch* fetch) {
    constexpr size_t kPanel = kVecs * kLanes;
    const bool last = k + depth == t_.depth;
    TileStep<W> step = {};
    step.depth = depth;
    step.width = last ? width : kPanel;
    Bring<kVecs>(column, width, k, depth, &step);
    for (size_t tile = 0; tile < tiles_.tiles; ++tile) {
      const size_t row = tiles_.First(tile);
      const size_t rows = tiles_.First(tile + 1) - row;
      W* sums = all_sums + row * kPanel;
      W* store[kSumRows];
      for (size_t i = 0; i < rows; ++i) {
        store[i] = sums + i * kPanel;
        if constexpr (kIsWide<T>) {
          if (last) store[i] = static_cast<W*>(t_.output[row + i]) + column;
        }
      }
      step.left = static_cast<const W*>(t_.packed_left) + row * t_.depth + k * rows;
      step.start = k == 0 ? nullptr : sums;
      step.store = store;
      if (kVecs == kPanelVecs && tile == 0 && step.source != nullptr) {
        MultiplyTileRows<T, kPanelVecs>(step, rows, share_, fetch);
      } else {
        MultiplyTileRows<NoSource, kVecs>(step, rows, share_, fetch);
      }
      for (size_t i = 0; !kIsWide<T> && last && i < rows; ++i) {
        ConvertRow(hn::ScalableTag<W>(), store[i], width,
                   static_cast<T*>(t_.output[row + i]) + column);
      }
    }
  }

  /// Sets the panel of a step. The first tile copies a whole panel, which it has to read anyway.
  template <size_t kVecs>
  void Bring(size_t column, size_t width, size_t k, size_t depth, TileStep<W>* step) {
    constexpr size_t kPanel = kVecs * kLanes;
    step->panel = panel_;
    if (layout_ == GatherMmLayout::kTransposed) {
      return PackColumns<kVecs>(Right() + column * t_.depth + k, t_.depth, depth, width, panel_);
    }
    const bool packed = layout_ == GatherMmLayout::kPacked;
    const T* source = Right() + (packed ? column * t_.depth + k * kPanel : k * t_.columns + column);
    const size_t stride = packed ? kPanel : t_.columns;
    if constexpr (kIsWide<T>) {
      if (packed) {
        step->panel = const_cast<W*>(source);  // only read
        return;
      }
    }
    if (kVecs == kPanelVecs && (packed || width == kPanel)) {
      step->source = source;
      step->source_stride = stride;
    } else {
      PackRows<kVecs>(source, stride, depth, packed ? kPanel : width, panel_);
    }
  }

  const GatherMmTile& t_;
  const GatherMmLayout layout_;
  const size_t group_;  // columns that are processed for one block of k
  const TileRows tiles_;
  W* const panel_;
  W* const sums_;     // of all rows with the group's panels so far
  size_t share_ = 0;  // part of the prefetch that is done during one tile
};

template <typename T>
void MultiplyMany(const GatherMmTile& t, GatherMmLayout layout, void* scratch) {
  ManyRows<T>(t, layout, scratch).Run();
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
