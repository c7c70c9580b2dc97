// Products with a matrix [columns, depth], read in place: its rows are the broadcast factor, and
// the rows of the left factor lie in the lanes. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATHER_MM_TRANSPOSED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATHER_MM_TRANSPOSED_INL_H_
#undef COREAI_KERNELS_GATHER_MM_TRANSPOSED_INL_H_
#else
#define COREAI_KERNELS_GATHER_MM_TRANSPOSED_INL_H_
#endif

#include "kernels/gather_mm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Panels of up to kPanelWidth rows, [depth, width] each; the panel that begins at row r lies at
/// packed + r * depth. The last one is as many vectors wide as it needs.
template <typename W>
void PackLeft(const void* const* left, size_t rows, size_t depth, void* packed) {
  constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<W>());
  for (size_t row = 0; row < rows; row += kPanelWidth<W>) {
    const size_t count = HWY_MIN(rows - row, kPanelWidth<W>);
    const size_t width = (count + kLanes - 1) / kLanes * kLanes;
    W* panel = static_cast<W*>(packed) + row * depth;
    // Blocks of depth, so that the lines written stay near while the rows go by.
    for (size_t first = 0; first < depth; first += 64) {
      const size_t last = HWY_MIN(depth, first + 64);
      for (size_t i = 0; i < width; ++i) {
        const W* in = i < count ? static_cast<const W*>(left[row + i]) : nullptr;
        for (size_t k = first; k < last; ++k) panel[k * width + i] = in == nullptr ? W{0} : in[k];
      }
    }
  }
}

template <typename T>
class TransposedTile {
 public:
  using W = Wide<T>;

  TransposedTile(const GatherMmTile& t, void* scratch)
      : t_(t), sums_(static_cast<W*>(scratch)), wide_(sums_ + kColumns * kGatherMmMaxRows) {
    static_assert(
        (kColumns * kGatherMmMaxRows + kSumRows * kPanelDepth) * sizeof(W) <= kGatherMmScratchBytes,
        "scratch is too small");
  }

  void Run() {
    for (size_t column = t_.first_column; column < t_.last_column; column += kColumns) {
      const size_t count = HWY_MIN(kColumns, t_.last_column - column);
      for (size_t k = 0; k < t_.depth; k += kPanelDepth) {
        MultiplyDepth(column, count, k, HWY_MIN(kPanelDepth, t_.depth - k));
      }
      for (size_t row = 0; row < t_.rows; row += kWidth) StorePanel(column, count, row);
    }
  }

 private:
  static constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<W>());
  static constexpr size_t kWidth = kPanelWidth<W>;
  // Columns whose sums are kept between blocks of depth.
  static constexpr size_t kColumns = 768 / sizeof(W);

  size_t Vectors(size_t row) const {
    return HWY_MIN(kPanelVecs, (t_.rows - row + kLanes - 1) / kLanes);
  }

  /// Sums of the panel that begins at `row`: [columns, width of the panel].
  W* Sums(size_t row, size_t columns) { return sums_ + row * columns; }

  void MultiplyDepth(size_t column, size_t columns, size_t k, size_t depth) {
    for (size_t c = 0; c < columns; c += kSumRows) {
      const size_t count = HWY_MIN(kSumRows, columns - c);
      const W* factor[kSumRows];
      for (size_t i = 0; i < count; ++i) factor[i] = Factor(column + c + i, i, k, depth);
      for (size_t row = 0; row < t_.rows; row += kWidth) {
        switch (Vectors(row)) {
          case 1:
            MultiplyPanel<1>(factor, count, row, c, columns, k, depth);
            break;
          case 2:
            MultiplyPanel<2>(factor, count, row, c, columns, k, depth);
            break;
          case 3:
            if constexpr (kPanelVecs > 2) {
              MultiplyPanel<3>(factor, count, row, c, columns, k, depth);
            }
            break;
          default:
            if constexpr (kPanelVecs > 2) {
              MultiplyPanel<4>(factor, count, row, c, columns, k, depth);
            }
        }
      }
    }
  }

  /// Elements k to k + depth of a column of the matrix; `slot` is where to write them out.
  const W* Factor(size_t column, size_t slot, size_t k, size_t depth) {
    const T* in = static_cast<const T*>(t_.right) + column * t_.depth + k;
    if constexpr (kIsWide<T>) {
      (void)slot;
      (void)depth;
      return in;
    } else {
      const hn::ScalableTag<W> d;
      W* out = wide_ + slot * kPanelDepth;
      size_t i = 0;
      for (; i + kLanes <= depth; i += kLanes) hn::Store(LoadWide(d, in + i), d, out + i);
      if (i < depth) hn::Store(LoadWideN(d, in + i, depth - i), d, out + i);
      return out;
    }
  }

  template <size_t kVecs>
  void MultiplyPanel(const W* const* factor, size_t count, size_t row, size_t c, size_t columns,
                     size_t k, size_t depth) {
    constexpr size_t kPanel = kVecs * kLanes;
    W* sums = Sums(row, columns) + c * kPanel;
    W* store[kSumRows];
    for (size_t i = 0; i < kSumRows; ++i) store[i] = sums + i * kPanel;
    const W* panel = static_cast<const W*>(t_.packed_left) + row * t_.depth + k * kPanel;
    const TileStep<W> step = {panel, 0, depth, k == 0 ? nullptr : sums, kPanel};
    Fetch fetch = {nullptr, 0, 0, 0};
    MultiplyTileRows<kVecs>(step, factor, count, store, 0, &fetch);
  }

  /// Turns the sums of a panel, whose rows lie in the lanes, and stores them row by row.
  void StorePanel(size_t column, size_t columns, size_t row) {
    const size_t panel = Vectors(row) * kLanes;
    const W* sums = Sums(row, columns);
    const size_t rows = HWY_MIN(panel, t_.rows - row);
    size_t c = 0;
#if HWY_TARGET != HWY_SCALAR
    const hn::ScalableTag<W> d;
    const hn::CappedTag<W, 4> d4;
    constexpr size_t kStep = hn::MaxLanes(d4);
    HWY_ALIGN W turned[4 * kLanes];
    for (size_t first = 0; first < rows; first += kLanes) {
      for (c = 0; c + 4 <= columns; c += 4) {
        const W* in = sums + c * panel + first;
        hn::StoreInterleaved4(hn::Load(d, in), hn::Load(d, in + panel), hn::Load(d, in + 2 * panel),
                              hn::Load(d, in + 3 * panel), d, turned);
        for (size_t i = 0; i < HWY_MIN(kLanes, rows - first); ++i) {
          T* out = static_cast<T*>(t_.output[row + first + i]) + column + c;
          for (size_t j = 0; j < 4; j += kStep) {
            StoreNarrow(hn::Load(d4, turned + 4 * i + j), d4, out + j);
          }
        }
      }
    }
#endif
    const hn::CappedTag<W, 1> one;
    for (; c < columns; ++c) {
      for (size_t i = 0; i < rows; ++i) {
        T* out = static_cast<T*>(t_.output[row + i]) + column + c;
        StoreNarrowN(hn::Set(one, sums[c * panel + i]), one, out, 1);
      }
    }
  }

  const GatherMmTile& t_;
  W* const sums_;
  W* const wide_;  // kSumRows rows of the matrix, written out
};

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
