// Included once per target by norms.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_LAYER_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_LAYER_NORM_INL_H_
#undef COREAI_KERNELS_LAYER_NORM_INL_H_
#else
#define COREAI_KERNELS_LAYER_NORM_INL_H_
#endif

#include "kernels/norms/layer_norm.h"
#include "kernels/select-inl.h"
#include "simd/lanes-inl.h"
#include "simd/reduce-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

template <bool kScale, bool kBias, typename T, typename S, typename W>
HWY_INLINE void WriteAffineRow(const T* in, const S* HWY_RESTRICT scale, const S* HWY_RESTRICT bias,
                               W mean, W inverse, T* out, size_t n) {
  const hn::ScalableTag<W> d;
  const auto center = hn::Set(d, mean);
  const auto factor = hn::Set(d, inverse);
  ForEachVector(d, n, [&](size_t i, auto lanes) COREAI_INLINE_LAMBDA {
    auto x = hn::Mul(hn::Sub(lanes.Load(d, in + i), center), factor);
    if constexpr (kScale) x = hn::Mul(x, lanes.Load(d, scale + i));
    if constexpr (kBias) x = hn::Add(x, lanes.Load(d, bias + i));
    lanes.Store(x, d, out + i);
  });
}

template <typename T, typename S>
void LayerNorm(const LayerNormRows& a) {
  using W = Wide<T>;
  const hn::ScalableTag<W> d;
  const auto* scale = static_cast<const S*>(a.scale);
  const auto* bias = static_cast<const S*>(a.bias);
  const size_t n = a.row_size;
  for (size_t row = 0; row < a.rows; ++row) {
    const T* in = static_cast<const T*>(a.input) + row * n;
    T* out = static_cast<T*>(a.output) + row * n;
    const W mean = SumOver(Identity(), d, in, n) / static_cast<W>(n);
    const W variance = SumOver(SquareAround<W>{mean}, d, in, n) / static_cast<W>(n);
    const W inverse = InverseSqrt(variance + static_cast<W>(a.eps));
    if (scale != nullptr && bias != nullptr) {
      WriteAffineRow<true, true>(in, scale, bias, mean, inverse, out, n);
    } else if (scale != nullptr) {
      WriteAffineRow<true, false>(in, scale, bias, mean, inverse, out, n);
    } else if (bias != nullptr) {
      WriteAffineRow<false, true>(in, scale, bias, mean, inverse, out, n);
    } else {
      WriteAffineRow<false, false>(in, scale, bias, mean, inverse, out, n);
    }
  }
}

inline LayerNormKernel SelectLayerNorm(DType dtype, bool wide_affine) {
  return SelectByDType(dtype, [=](auto zero) -> LayerNormKernel {
    using T = decltype(zero);
    return wide_affine ? LayerNorm<T, Wide<T>> : LayerNorm<T, T>;
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
