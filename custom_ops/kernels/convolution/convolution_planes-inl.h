// Convolutions in which each filter reads one plane. Included once per target by convolution.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_CONVOLUTION_PLANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_CONVOLUTION_PLANES_INL_H_
#undef COREAI_KERNELS_CONVOLUTION_PLANES_INL_H_
#else
#define COREAI_KERNELS_CONVOLUTION_PLANES_INL_H_
#endif

#include "kernels/convolution/convolution_part.h"
#include "kernels/gather_mm/gather_mm_pack-inl.h"
#include "kernels/select-inl.h"
#include "simd/lanes-inl.h"
#include "simd/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Filters in the lanes of vectors: as many planes are copied side by side, with their padding, in
/// parts of some windows.
template <typename W>
class PlanesInLanes {
 public:
  PlanesInLanes(const ConvolutionPlanes& a, size_t first, void* scratch)
      : a_(a),
        s_(a.sizes),
        part_(a.sizes),
        first_(first),
        lanes_(HWY_MIN(kLanes, a.filters - first)) {
    weight_ = static_cast<W*>(scratch);
    planes_ = weight_ + s_.window_size() * kLanes;
    const W* weights[kLanes] = {};
    for (size_t i = 0; i < lanes_; ++i) {
      weights[i] = static_cast<const W*>(a.weight) + (first + i) * s_.window_size();
      in_[i] = static_cast<const W*>(a.input) + (first + i) / a.multiple * s_.height * s_.width;
    }
    TransposeRows(weights, 0, lanes_, s_.window_size(), kLanes, kLanes, weight_);
  }

  void Run() {
    for (size_t row = 0; row < s_.out_height; row += kPartRows) {
      const size_t rows = HWY_MIN(kPartRows, s_.out_height - row);
      for (size_t column = 0; column < s_.out_width; column += kPartColumns) {
        const size_t columns = HWY_MIN(kPartColumns, s_.out_width - column);
        Copy(row, column);
        for (size_t i = 0; i < rows; ++i) {
          for (size_t x = 0; x < columns;) x += Windows(row, i, column, x, columns - x);
        }
      }
    }
  }

 private:
  static constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<W>());

  /// Copies the part of the planes that begins with a window.
  void Copy(size_t row, size_t column) {
    hwy::ZeroBytes(planes_, part_.rows * part_.columns * kLanes * sizeof(W));
    // The part begins here in the padded planes, after as many rows and columns of zeros.
    const size_t y = row * s_.stride_y, x = column * s_.stride_x;
    const size_t above = y < s_.top ? s_.top - y : 0, before = x < s_.left ? s_.left - x : 0;
    const size_t first = y + above - s_.top, start = x + before - s_.left;
    if (above >= part_.rows || before >= part_.columns) return;
    if (first >= s_.height || start >= s_.width) return;
    const size_t rows = HWY_MIN(part_.rows - above, s_.height - first);
    const size_t columns = HWY_MIN(part_.columns - before, s_.width - start);
    for (size_t i = 0; i < rows; ++i) {
      TransposeRows(in_, (first + i) * s_.width + start, lanes_, columns, kLanes, kLanes,
                    planes_ + ((above + i) * part_.columns + before) * kLanes);
    }
  }

  /// Computes some of the windows that are left in a row of a part; returns how many.
  HWY_INLINE size_t Windows(size_t row, size_t i, size_t column, size_t x, size_t left) const {
    const W* from = planes_ + (i * s_.stride_y * part_.columns + x * s_.stride_x) * kLanes;
    W* out =
        static_cast<W*>(a_.output) + first_ * s_.windows() + (row + i) * s_.out_width + column + x;
    const bool next = s_.stride_x == 1;
    if (left * 2 <= kLanes) {
      const size_t count = HWY_MIN(left, kHalf);
      next ? Multiply<kHalf, true>(from, count, out) : Multiply<kHalf, false>(from, count, out);
      return count;
    }
    const size_t count = HWY_MIN(left, kLanes);
    next ? Multiply<kLanes, true>(from, count, out) : Multiply<kLanes, false>(from, count, out);
    return count;
  }

  template <size_t kCount, bool kNext>
  HWY_NOINLINE void Multiply(const W* HWY_RESTRICT from, size_t count, W* HWY_RESTRICT out) const {
    const hn::ScalableTag<W> d;
    const size_t step = (kNext ? 1 : s_.stride_x) * kLanes;
    const size_t right = s_.dilation_x * kLanes, down = s_.dilation_y * part_.columns * kLanes;
    const W* HWY_RESTRICT weight = weight_;
    const W* bias = static_cast<const W*>(a_.bias);
    const auto start = bias == nullptr ? hn::Zero(d) : hn::LoadN(d, bias + first_, lanes_);
    hn::Vec<decltype(d)> sums[kLanes];
#pragma GCC unroll 16
    for (size_t i = 0; i < kLanes; ++i) sums[i] = start;
    for (size_t y = 0; y < s_.window_height; ++y, from += down) {
      const W* at = from;
      for (size_t x = 0; x < s_.window_width; ++x, at += right, weight += kLanes) {
        const auto w = hn::Load(d, weight);
#pragma GCC unroll 16
        for (size_t i = 0; i < kCount; ++i) {
          sums[i] = hn::MulAdd(w, hn::Load(d, at + i * step), sums[i]);
        }
      }
    }
    Transpose(d, sums);
#pragma GCC unroll 16
    for (size_t i = 0; i < kLanes; ++i) {
      if (i < lanes_) hn::StoreN(sums[i], d, out + i * s_.windows(), count);
    }
  }

  static constexpr size_t kHalf = (kLanes + 1) / 2;

  const ConvolutionPlanes& a_;
  const ConvolutionSizes& s_;
  const ConvolutionPart part_;
  const size_t first_, lanes_;  // filters
  const W* in_[kLanes];
  W* weight_;
  W* planes_;
};

template <typename W>
void MultiplyPlanes(const ConvolutionPlanes& a, void* scratch) {
  constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<W>());
  static_assert(kLanes * sizeof(W) <= kPartLaneBytes, "scratch is too small");
  for (size_t first = 0; first < a.filters; first += kLanes) {
    PlanesInLanes<W>(a, first, scratch).Run();
  }
}

template <typename T>
void NarrowTo(const void* input, size_t count, void* output) {
  ConvertRow(hn::ScalableTag<Wide<T>>(), static_cast<const Wide<T>*>(input), count,
             static_cast<T*>(output));
}

inline ConvolutionPlanesKernel SelectConvolutionPlanes(DType dtype) {
  return dtype == DType::kFloat64 ? MultiplyPlanes<double> : MultiplyPlanes<float>;
}

inline NarrowKernel SelectNarrow(DType dtype) {
  return SelectByDType(dtype, [](auto zero) -> NarrowKernel { return NarrowTo<decltype(zero)>; });
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
