// Convolutions in which each filter reads one plane. Included once per target by convolution.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_CONVOLUTION_PLANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_CONVOLUTION_PLANES_INL_H_
#undef COREAI_KERNELS_CONVOLUTION_PLANES_INL_H_
#else
#define COREAI_KERNELS_CONVOLUTION_PLANES_INL_H_
#endif

#include "kernels/convolution/convolution_part.h"
#include "kernels/select-inl.h"
#include "simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

// Rows of sums in registers: enough to hide the latency of a multiply-add.
inline constexpr size_t kPlaneRows = 8;

/// A part of a plane, copied with its padding.
template <typename W>
class PlanePart {
 public:
  PlanePart(const ConvolutionSizes& s, size_t row, size_t column, W* scratch)
      : s_(s), row_(row), column_(column), part_(s), scratch_(scratch) {}

  void Copy(const W* HWY_RESTRICT plane) {
    hwy::ZeroBytes(scratch_, part_.rows * part_.pitch * sizeof(W));
    // The part begins here in the plane, after as many rows and columns of zeros.
    const size_t y = row_ * s_.stride_y, x = column_ * s_.stride_x;
    const size_t above = y < s_.top ? s_.top - y : 0, before = x < s_.left ? s_.left - x : 0;
    const size_t first = y + above - s_.top, start = x + before - s_.left;
    if (above >= part_.rows || before >= part_.columns) return;
    if (first >= s_.height || start >= s_.width) return;
    const size_t rows = HWY_MIN(part_.rows - above, s_.height - first);
    const size_t columns = HWY_MIN(part_.columns - before, s_.width - start);
    for (size_t i = 0; i < rows; ++i) {
      hwy::CopyBytes(plane + (first + i) * s_.width + start,
                     scratch_ + (above + i) * part_.pitch + before, columns * sizeof(W));
    }
  }

  /// Writes the windows of the part.
  void Multiply(const W* HWY_RESTRICT weight, W bias, W* HWY_RESTRICT out) const {
    const size_t rows = HWY_MIN(kPartRows, s_.out_height - row_);
    out += row_ * s_.out_width + column_;
    for (size_t row = 0; row < rows;) {
      const size_t left = rows - row;
      // A row too many costs less than the rows one by one.
      const size_t here = left < kPlaneRows / 2 ? 1 : HWY_MIN(left, kPlaneRows);
      if (here == 1) {
        Rows<1>(row, 1, weight, bias, out);
      } else {
        Rows<kPlaneRows>(row, here, weight, bias, out);
      }
      row += here;
    }
  }

 private:
  template <size_t kRows>
  HWY_INLINE void Rows(size_t row, size_t count, const W* HWY_RESTRICT weight, W bias,
                       W* HWY_RESTRICT out) const {
    const hn::ScalableTag<W> d;
    const hn::RebindToSigned<decltype(d)> di;
    constexpr size_t kLanes = hn::MaxLanes(d);
    using I = hn::TFromD<decltype(di)>;
    HWY_ALIGN I places[kLanes];
    for (size_t i = 0; i < kLanes; ++i) places[i] = static_cast<I>(i * s_.stride_x);
    const auto steps = hn::Load(di, places);
    const size_t columns = HWY_MIN(kPartColumns, s_.out_width - column_);
    for (size_t column = 0; column < columns; column += kLanes) {
      hn::Vec<decltype(d)> sums[kRows];
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) sums[r] = hn::Set(d, bias);
      const W* factor = weight;
      for (size_t y = 0; y < s_.window_height; ++y) {
        const W* from = scratch_ + (row * s_.stride_y + y * s_.dilation_y) * part_.pitch +
                        column * s_.stride_x;
        for (size_t x = 0; x < s_.window_width; ++x, from += s_.dilation_x) {
          const auto w = hn::Set(d, *factor++);
#pragma GCC unroll 8
          for (size_t r = 0; r < kRows; ++r) {
            const W* at = from + r * s_.stride_y * part_.pitch;
            const auto v = s_.stride_x == 1 ? hn::LoadU(d, at) : hn::GatherIndex(d, at, steps);
            sums[r] = hn::MulAdd(w, v, sums[r]);
          }
        }
      }
      const size_t n = HWY_MIN(kLanes, columns - column);
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) {
        if (r < count) hn::StoreN(sums[r], d, out + (row + r) * s_.out_width + column, n);
      }
    }
  }

  const ConvolutionSizes& s_;
  const size_t row_, column_;  // the first window
  const ConvolutionPart part_;
  W* const scratch_;
};

template <typename W>
void MultiplyPlanes(const ConvolutionPlanes& a, void* scratch) {
  static_assert(kPartRows % kPlaneRows == 0 && kPartLanes >= hn::MaxLanes(hn::ScalableTag<W>()),
                "a part has the rows and columns that are read behind its windows");
  const ConvolutionSizes& s = a.sizes;
  for (size_t filter = 0; filter < a.filters; ++filter) {
    const size_t plane = filter / a.multiple * s.height * s.width;
    const W bias = a.bias == nullptr ? W{0} : static_cast<const W*>(a.bias)[filter];
    for (size_t row = 0; row < s.out_height; row += kPartRows) {
      for (size_t column = 0; column < s.out_width; column += kPartColumns) {
        PlanePart<W> part(s, row, column, static_cast<W*>(scratch));
        part.Copy(static_cast<const W*>(a.input) + plane);
        part.Multiply(static_cast<const W*>(a.weight) + filter * s.window_size(), bias,
                      static_cast<W*>(a.output) + filter * s.windows());
      }
    }
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
