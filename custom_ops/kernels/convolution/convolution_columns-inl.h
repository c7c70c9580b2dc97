// Packs the windows of a convolution as columns of a matrix. Included once per target by
// convolution.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_CONVOLUTION_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_CONVOLUTION_COLUMNS_INL_H_
#undef COREAI_KERNELS_CONVOLUTION_COLUMNS_INL_H_
#else
#define COREAI_KERNELS_CONVOLUTION_COLUMNS_INL_H_
#endif

#include "kernels/convolution/convolution.h"
#include "kernels/gather_mm/gather_mm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// One vector of windows: where they begin in the plane, before it where there is padding.
template <typename W>
class WindowLanes {
 public:
  WindowLanes(const ConvolutionSizes& s, size_t first) : s_(s) {
    size_t row = first / s.out_width, column = first % s.out_width;
    for (size_t i = 0; i < kLanes; ++i) {
      y_[i] = static_cast<I>(row * s.stride_y) - static_cast<I>(s.top);
      x_[i] = static_cast<I>(column * s.stride_x) - static_cast<I>(s.left);
      at_[i] = y_[i] * static_cast<I>(s.width) + x_[i];
      consecutive_ = consecutive_ && at_[i] == at_[0] + static_cast<I>(i);
      if (++column == s.out_width) {
        column = 0;
        // Any window behind the last one.
        row = HWY_MIN(row + 1, s.out_height - 1);
      }
    }
  }

  /// Writes an element of the windows in each of the channels, zero outside of the plane, at `to`,
  /// `to` + `stride` and so on.
  HWY_INLINE void Write(size_t row, size_t column, const W* HWY_RESTRICT plane, size_t channels,
                        size_t stride, W* HWY_RESTRICT to) const {
    const hn::ScalableTag<W> d;
    const hn::RebindToSigned<decltype(d)> di;
    const auto zero = hn::Zero(di);
    const I down = static_cast<I>(row * s_.dilation_y);
    const I across = static_cast<I>(column * s_.dilation_x);
    const auto y = hn::Add(hn::Load(di, y_), hn::Set(di, down));
    const auto x = hn::Add(hn::Load(di, x_), hn::Set(di, across));
    const auto in_rows =
        hn::And(hn::Ge(y, zero), hn::Lt(y, hn::Set(di, static_cast<I>(s_.height))));
    const auto in_columns =
        hn::And(hn::Ge(x, zero), hn::Lt(x, hn::Set(di, static_cast<I>(s_.width))));
    const auto inside = hn::And(in_rows, in_columns);
    const auto mask = hn::RebindMask(d, inside);
    const I offset = down * static_cast<I>(s_.width) + across;
    const I begin = at_[0] + offset;
    const I size = static_cast<I>(s_.height * s_.width);
    if (hn::AllFalse(di, inside)) {
      for (size_t c = 0; c < channels; ++c, to += stride) hn::Store(hn::Zero(d), d, to);
    } else if (consecutive_ && begin >= 0 && begin + static_cast<I>(kLanes) <= size) {
      plane += begin;
      for (size_t c = 0; c < channels; ++c, to += stride, plane += size) {
        hn::Store(hn::IfThenElseZero(mask, hn::LoadU(d, plane)), d, to);
      }
    } else {
      const auto index = hn::Add(hn::Load(di, at_), hn::Set(di, offset));
      for (size_t c = 0; c < channels; ++c, to += stride, plane += size) {
        hn::Store(hn::MaskedGatherIndex(mask, d, plane, index), d, to);
      }
    }
  }

 private:
  static constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<W>());
  using I = hn::TFromD<hn::RebindToSigned<hn::ScalableTag<W>>>;

  const ConvolutionSizes& s_;
  HWY_ALIGN I y_[kLanes], x_[kLanes], at_[kLanes];
  bool consecutive_ = true;  // also where a row ends, if windows overlap the next by as much
};

template <typename W>
void PackWindows(const ConvolutionColumns& a) {
  const hn::ScalableTag<W> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  const size_t depth = a.depth();
  for (size_t column = 0; column < a.count; column += kPanelWidth<W>) {
    const size_t count = HWY_MIN(kPanelWidth<W>, a.count - column);
    const size_t width = (count + kLanes - 1) / kLanes * kLanes;
    W* const panel = static_cast<W*>(a.packed) + column * depth;
    for (size_t lane = 0; lane < width; lane += kLanes) {
      // Windows behind the last one are in the padding of the panel, which nothing reads.
      const WindowLanes<W> lanes(a.sizes, a.first + column + lane);
      W* to = panel + lane;
      for (size_t y = 0; y < a.sizes.window_height; ++y) {
        for (size_t x = 0; x < a.sizes.window_width; ++x, to += a.channels * width) {
          lanes.Write(y, x, static_cast<const W*>(a.input), a.channels, width, to);
        }
      }
      hn::Store(hn::Set(d, W{1}), d, to);
    }
  }
}

inline ConvolutionPackKernel SelectConvolutionPack(DType dtype) {
  return dtype == DType::kFloat64 ? PackWindows<double> : PackWindows<float>;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
