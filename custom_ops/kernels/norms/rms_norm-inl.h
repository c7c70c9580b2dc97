// Included once per target by norms.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_RMS_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_RMS_NORM_INL_H_
#undef COREAI_KERNELS_RMS_NORM_INL_H_
#else
#define COREAI_KERNELS_RMS_NORM_INL_H_
#endif

#include "kernels/norms/rms_norm.h"
#include "kernels/select-inl.h"
#include "simd/lanes-inl.h"
#include "simd/reduce-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

// What a normalized vector is multiplied by the scale as, if there is one: wide or rounded to T.
enum class Scaling { kNone, kWide, kRounded };

template <Scaling kScaling, typename T, typename S, typename W>
HWY_INLINE void WriteRow(const T* in, const S* HWY_RESTRICT scale, W inverse, T* out, size_t n) {
  const hn::ScalableTag<W> d;
  const auto factor = hn::Set(d, inverse);
  ForEachVector(d, n, [&](size_t i, auto lanes) COREAI_INLINE_LAMBDA {
    auto x = hn::Mul(lanes.Load(d, in + i), factor);
    if constexpr (kScaling == Scaling::kRounded) x = RoundTo<T>(d, x);
    if constexpr (kScaling != Scaling::kNone) x = hn::Mul(x, lanes.Load(d, scale + i));
    lanes.Store(x, d, out + i);
  });
}

template <typename T, typename S>
void RmsNorm(const RmsNormRows& a) {
  using W = Wide<T>;
  const auto* scale = static_cast<const S*>(a.scale);
  for (size_t row = 0; row < a.rows; ++row) {
    const T* in = static_cast<const T*>(a.input) + row * a.row_size;
    T* out = static_cast<T*>(a.output) + row * a.row_size;
    const W sum = SumOver(Square(), hn::ScalableTag<W>(), in, a.row_size);
    const W inverse = InverseSqrt(sum / static_cast<W>(a.row_size) + static_cast<W>(a.eps));
    if (scale == nullptr) {
      WriteRow<Scaling::kNone>(in, scale, inverse, out, a.row_size);
    } else if (a.round_before_scale && !kIsWide<T>) {
      WriteRow<Scaling::kRounded>(in, scale, inverse, out, a.row_size);
    } else {
      WriteRow<Scaling::kWide>(in, scale, inverse, out, a.row_size);
    }
  }
}

inline RmsNormKernel SelectRmsNorm(DType dtype, bool wide_scale) {
  return SelectByDType(dtype, [=](auto zero) -> RmsNormKernel {
    using T = decltype(zero);
    return wide_scale ? RmsNorm<T, Wide<T>> : RmsNorm<T, T>;
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
