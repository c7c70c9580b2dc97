// Included once per target by layer_norm.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_LAYER_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_LAYER_NORM_INL_H_
#undef COREAI_KERNELS_LAYER_NORM_INL_H_
#else
#define COREAI_KERNELS_LAYER_NORM_INL_H_
#endif

#include "kernels/norms/layer_norm.h"
#include "simd/lanes-inl.h"
#include "simd/reduce-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

template <bool kScale, bool kBias, typename T, typename S, typename W>
HWY_INLINE void WriteAffineRow(const T* in, const S* HWY_RESTRICT scale, const S* HWY_RESTRICT bias,
                               W mean, W inverse, T* out, size_t n) {
  const hn::ScalableTag<W> d;
  const size_t lanes = hn::Lanes(d);
  const auto center = hn::Set(d, mean);
  const auto factor = hn::Set(d, inverse);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    auto x = hn::Mul(hn::Sub(LoadWide(d, in + i), center), factor);
    if constexpr (kScale) x = hn::Mul(x, LoadWide(d, scale + i));
    if constexpr (kBias) x = hn::Add(x, LoadWide(d, bias + i));
    StoreNarrow(x, d, out + i);
  }
  if (i < n) {
    auto x = hn::Mul(hn::Sub(LoadWideN(d, in + i, n - i), center), factor);
    if constexpr (kScale) x = hn::Mul(x, LoadWideN(d, scale + i, n - i));
    if constexpr (kBias) x = hn::Add(x, LoadWideN(d, bias + i, n - i));
    StoreNarrowN(x, d, out + i, n - i);
  }
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
  switch (dtype) {
    case DType::kFloat32:
      return LayerNorm<float, float>;
    case DType::kFloat16:
      return wide_affine ? LayerNorm<hwy::float16_t, float>
                         : LayerNorm<hwy::float16_t, hwy::float16_t>;
    case DType::kBFloat16:
      return wide_affine ? LayerNorm<hwy::bfloat16_t, float>
                         : LayerNorm<hwy::bfloat16_t, hwy::bfloat16_t>;
    case DType::kFloat64:
      return LayerNorm<double, double>;
  }
  return nullptr;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
