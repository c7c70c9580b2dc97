// Convolutions whose filters are the lanes of vectors. Included once per target by convolution.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_CONVOLUTION_FILTERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_CONVOLUTION_FILTERS_INL_H_
#undef COREAI_KERNELS_CONVOLUTION_FILTERS_INL_H_
#else
#define COREAI_KERNELS_CONVOLUTION_FILTERS_INL_H_
#endif

#include "kernels/convolution/convolution_part.h"
#include "kernels/gather_mm/gather_mm_pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

// Filters of a panel, 64 floats on AVX-512: networks have multiples of 64 filters, which panels of
// three vectors would leave a rest of.
inline constexpr size_t kFilterVecs = kPanelVecs == 3 ? 4 : 2;
template <typename W>
inline constexpr size_t kFilterWidth = kFilterVecs * hn::MaxLanes(hn::ScalableTag<W>());

/// Windows of a tile: with up to 24 of 32 vectors of sums, or 12 of 16.
template <size_t kVecs>
inline constexpr size_t kTileWindows = kVecs == 4 ? 6 : kSumRows;

template <typename W>
void Finish(const ConvolutionFinish& a) {
  const hn::ScalableTag<W> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  auto* HWY_RESTRICT output = static_cast<W*>(a.output);
  const auto* HWY_RESTRICT residual = static_cast<const W*>(a.residual);
  for (size_t i = 0; i < a.count; i += kLanes) {
    const size_t here = HWY_MIN(kLanes, a.count - i);
    auto x = hn::LoadN(d, output + i, here);
    if (residual != nullptr) x = hn::Add(x, hn::LoadN(d, residual + i, here));
    // Not Max, which differs between processors for NaN and the sign of zero.
    if (a.relu) x = hn::IfThenElse(hn::Le(x, hn::Zero(d)), hn::Zero(d), x);
    hn::StoreN(x, d, output + i, here);
  }
}

/// Multiplies panels of filters, each by all windows while a block of it is in the nearest cache.
/// Elements of windows are read where they lie in the padded planes, as windows overlap.
template <typename W>
class FiltersInLanes {
 public:
  FiltersInLanes(const ConvolutionFilters& a, void* scratch)
      : a_(a),
        s_(a.sizes),
        cover_(a.sizes, a.channels, a.first, a.count, sizeof(W)),
        depth_(a.sizes.window_size() * a.channels),
        sums_(static_cast<W*>(scratch)),
        offsets_(reinterpret_cast<size_t*>(sums_ + a.count * kWidth)) {
    static_assert(kWidth * sizeof(W) <= kPanelBytes, "scratch is too small");
    static_assert(kConvolutionPanelStep % kWidth == 0, "whole panels");
  }

  void Run() {
    FindOffsets();
    if (cover_.in_place) {
      planes_ = static_cast<const W*>(a_.input) + (cover_.top - s_.top) * s_.width + cover_.left -
                s_.left;
    } else {
      W* planes = reinterpret_cast<W*>(offsets_ + (depth_ + 7) / 8 * 8);
      Copy(planes);
      planes_ = planes;
    }
    for (size_t column = a_.first_filter; column < a_.last_filter; column += kWidth) {
      const size_t filters = HWY_MIN(kWidth, a_.filters - column);
      switch ((filters + kLanes - 1) / kLanes) {
        case 1:
          Panel<1>(column, filters);
          break;
        case 2:
          Panel<2>(column, filters);
          break;
        case 3:
          if constexpr (kFilterVecs == 4) Panel<3>(column, filters);
          break;
        default:
          if constexpr (kFilterVecs == 4) Panel<4>(column, filters);
      }
    }
  }

 private:
  static constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<W>());
  static constexpr size_t kWidth = kFilterWidth<W>;
  static_assert(kFilterVecs == 2 || kFilterVecs == 4, "one case for each number of vectors");

  /// One block of the elements of windows: its sums are added to `start` and stored.
  struct Block {
    const size_t* offsets;  ///< [depth], from the first element of a window
    const W* panel;         ///< [depth, kVecs vectors], aligned
    size_t depth;
    const W* start;       ///< sums of the first window, aligned
    size_t start_stride;  ///< elements to those of the next window
    const char* fetch;    ///< memory to prefetch, a line for each element
  };

  /// Copies the part of the padded planes that the windows cover.
  void Copy(W* planes) const {
    const size_t plane = s_.height * s_.width;
    const size_t above = cover_.top < s_.top ? s_.top - cover_.top : 0;
    const size_t before = cover_.left < s_.left ? s_.left - cover_.left : 0;
    const size_t top = cover_.top + above - s_.top, left = cover_.left + before - s_.left;
    const size_t rows = Within(cover_.rows, above, s_.height, top);
    const size_t columns = Within(cover_.columns, before, s_.width, left);
    if (rows != cover_.rows || columns != cover_.columns) {
      hwy::ZeroBytes(planes, a_.channels * cover_.plane * sizeof(W));
    }
    if (rows == 0 || columns == 0) return;
    const hn::ScalableTag<W> d;
    const W* in = static_cast<const W*>(a_.input) + top * s_.width + left;
    W* out = planes + above * cover_.row + before;
    for (size_t c = 0; c < a_.channels; ++c, in += plane, out += cover_.plane) {
      for (size_t y = 0; y < rows; ++y) {
        const W* HWY_RESTRICT from = in + y * s_.width;
        W* HWY_RESTRICT to = out + y * cover_.row;
        size_t x = 0;
        for (; x + kLanes <= columns; x += kLanes) hn::StoreU(hn::LoadU(d, from + x), d, to + x);
        if (x < columns) hn::StoreN(hn::LoadN(d, from + x, columns - x), d, to + x, columns - x);
      }
    }
  }

  /// The number of elements of `size`, without those of padding, within a plane from `first` on.
  static size_t Within(size_t size, size_t padding, size_t plane, size_t first) {
    return padding >= size || first >= plane ? 0 : HWY_MIN(size - padding, plane - first);
  }

  void FindOffsets() {
    size_t* next = offsets_;
    for (size_t c = 0; c < a_.channels; ++c) {
      for (size_t y = 0; y < s_.window_height; ++y) {
        for (size_t x = 0; x < s_.window_width; ++x) {
          *next++ = c * cover_.plane + y * s_.dilation_y * cover_.row + x * s_.dilation_x;
        }
      }
    }
  }

  template <size_t kVecs>
  void Panel(size_t column, size_t filters) {
    constexpr size_t kPanel = kVecs * kLanes;
    HWY_ALIGN W bias[kPanel] = {};
    if (a_.bias != nullptr) {
      hwy::CopyBytes(static_cast<const W*>(a_.bias) + column, bias, filters * sizeof(W));
    }
    const W* panel = static_cast<const W*>(a_.packed) + column * depth_;
    for (size_t k = 0; k == 0 || k < depth_; k += kPanelDepth) {
      const size_t depth = HWY_MIN(kPanelDepth, depth_ - k);
      Windows<kVecs>({offsets_ + k, panel, depth, k == 0 ? bias : sums_, k == 0 ? 0 : kPanel,
                      reinterpret_cast<const char*>(panel + depth * kPanel)});
      panel += depth * kPanel;
    }
    const size_t first = column * s_.windows() + a_.first;
    W* const out = static_cast<W*>(a_.output) + first;
    const W* residual = static_cast<const W*>(a_.residual);
    if (residual != nullptr) residual += first;
    // Few planes at a time: a page of each fills an entry of the TLB.
    for (size_t filter = 0; filter < filters; filter += kLanes) {
      const size_t lanes = HWY_MIN(kLanes, filters - filter);
      for (size_t i = 0; i < a_.count; i += kLanes) {
        const size_t here = HWY_MIN(kLanes, a_.count - i);
        const W* rows[kLanes] = {};
        for (size_t r = 0; r < here; ++r) rows[r] = sums_ + (i + r) * kPanel;
        TransposeRows(rows, filter, here, lanes, here, s_.windows(),
                      out + filter * s_.windows() + i);
      }
      if (residual == nullptr && !a_.relu) continue;
      for (size_t i = filter; i < filter + lanes; ++i) {
        Finish<W>({residual == nullptr ? nullptr : residual + i * s_.windows(), a_.relu, a_.count,
                   out + i * s_.windows()});
      }
    }
  }

  /// Adds a block to the sums of all windows, in tiles of windows in a row of nearly equal widths.
  template <size_t kVecs>
  void Windows(Block block) const {
    constexpr size_t kPanel = kVecs * kLanes;
    const char* const fetch = block.fetch;
    size_t row = a_.first / s_.out_width, column = a_.first % s_.out_width;
    const size_t top = row, left = cover_.left / s_.stride_x;
    for (size_t done = 0, tile = 0; done < a_.count; ++row, column = 0) {
      const size_t windows = HWY_MIN(s_.out_width - column, a_.count - done);
      const size_t tiles = (windows + kTileWindows<kVecs> - 1) / kTileWindows<kVecs>;
      const W* const from = planes_ + (row - top) * s_.stride_y * cover_.row;
      for (size_t i = 0, x = 0; i < tiles; ++i, ++tile) {
        const size_t end = (i + 1) * windows / tiles;
        // The first tiles bring as many lines as the next block has.
        block.fetch = tile < kVecs ? fetch + tile * block.depth * 64
                                   : reinterpret_cast<const char*>(block.panel);
        Block here = block;
        here.start += (done + x) * block.start_stride;
        TileOf<kTileWindows<kVecs>, kVecs>(end - x, here, from + (column + x - left) * s_.stride_x,
                                           sums_ + (done + x) * kPanel);
        x = end;
      }
      done += windows;
    }
  }

  template <size_t kRows, size_t kVecs>
  HWY_INLINE void TileOf(size_t rows, const Block& block, const W* from, W* sums) const {
    if constexpr (kRows > 1) {
      if (rows < kRows) return TileOf<kRows - 1, kVecs>(rows, block, from, sums);
    }
    Tile<kRows, kVecs>(block, from, sums);
  }

  /// Adds element k of kRows windows, times panel[k, :], over a block.
  template <size_t kRows, size_t kVecs>
  HWY_NOINLINE void Tile(const Block& block, const W* from, W* HWY_RESTRICT store) const {
    const hn::ScalableTag<W> d;
    hn::Vec<decltype(d)> sums[kRows][kVecs];
#pragma GCC unroll 8
    for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (size_t v = 0; v < kVecs; ++v) sums[i][v] = hn::Zero(d);
    }
    const size_t stride = s_.stride_x;
    const size_t* HWY_RESTRICT offsets = block.offsets;
    const W* HWY_RESTRICT panel = block.panel;
    const char* fetch = block.fetch;
    for (size_t k = 0; k < block.depth; ++k, panel += kVecs * kLanes, fetch += 64) {
      const W* HWY_RESTRICT at = from + offsets[k];
      __builtin_prefetch(fetch, 0, 2);
      hn::Vec<decltype(d)> b[kVecs];
#pragma GCC unroll 4
      for (size_t v = 0; v < kVecs; ++v) b[v] = hn::Load(d, panel + v * kLanes);
#pragma GCC unroll 8
      for (size_t i = 0; i < kRows; ++i) {
        const auto factor = hn::Set(d, at[i * stride]);
#pragma GCC unroll 4
        for (size_t v = 0; v < kVecs; ++v) sums[i][v] = hn::MulAdd(factor, b[v], sums[i][v]);
      }
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (size_t v = 0; v < kVecs; ++v) {
        const auto start = hn::Load(d, block.start + i * block.start_stride + v * kLanes);
        hn::Store(hn::Add(sums[i][v], start), d, store + (i * kVecs + v) * kLanes);
      }
    }
  }

  const ConvolutionFilters& a_;
  const ConvolutionSizes& s_;
  const ConvolutionCover cover_;
  const size_t depth_;
  W* const sums_;              // [windows, a panel of filters]
  size_t* const offsets_;      // of the elements of a window
  const W* planes_ = nullptr;  // [channels, cover_.plane]
};

template <typename W>
void MultiplyFilters(const ConvolutionFilters& a, void* scratch) {
  FiltersInLanes<W>(a, scratch).Run();
}

/// Packs panels of filters, each as [depth, filters], the last with zeros behind them.
template <typename W>
void PackFilterPanels(const void* weight, size_t depth, size_t filters, void* packed) {
  constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<W>());
  for (size_t first = 0; first < filters; first += kFilterWidth<W>) {
    const size_t count = HWY_MIN(kFilterWidth<W>, filters - first);
    const size_t width = (count + kLanes - 1) / kLanes * kLanes;
    for (size_t lane = 0; lane < width; lane += kLanes) {
      const size_t lanes = HWY_MIN(kLanes, count - lane);
      const W* rows[kLanes] = {};
      for (size_t i = 0; i < lanes; ++i) {
        rows[i] = static_cast<const W*>(weight) + (first + lane + i) * depth;
      }
      TransposeRows(rows, 0, lanes, depth, kLanes, width,
                    static_cast<W*>(packed) + first * depth + lane);
    }
  }
}

inline GatherMmPackRightKernel SelectConvolutionPackFilters(DType dtype) {
  return dtype == DType::kFloat64 ? PackFilterPanels<double> : PackFilterPanels<float>;
}

inline ConvolutionFinishKernel SelectConvolutionFinish(DType dtype) {
  return dtype == DType::kFloat64 ? Finish<double> : Finish<float>;
}

inline ConvolutionFiltersKernel SelectConvolutionFilters(DType dtype) {
  return dtype == DType::kFloat64 ? MultiplyFilters<double> : MultiplyFilters<float>;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
