// Included once per target by rms_norm.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_RMS_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_RMS_NORM_INL_H_
#undef COREAI_KERNELS_RMS_NORM_INL_H_
#else
#define COREAI_KERNELS_RMS_NORM_INL_H_
#endif

#include "kernels/norms/rms_norm.h"
#include "simd/lanes-inl.h"
#include "simd/reduce-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

// Converts a normalized vector to an output vector.
enum class Scaling { kNone, kWide, kRounded };

template <Scaling kScaling, typename T, class D, class V>
HWY_INLINE V ScaleNormalized(D d, V normalized, V scale) {
  if constexpr (kScaling == Scaling::kNone) return normalized;
  if constexpr (kScaling == Scaling::kRounded) normalized = RoundTo<T>(d, normalized);
  return hn::Mul(normalized, scale);
}

template <Scaling kScaling, typename T, typename S, typename W>
HWY_INLINE void WriteRow(const T* in, const S* HWY_RESTRICT scale, W inverse, T* out, size_t n) {
  const hn::ScalableTag<W> d;
  const size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(d, inverse);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    auto s = factor;
    if constexpr (kScaling != Scaling::kNone) s = LoadWide(d, scale + i);
    const auto x = hn::Mul(LoadWide(d, in + i), factor);
    StoreNarrow(ScaleNormalized<kScaling, T>(d, x, s), d, out + i);
  }
  if (i < n) {
    auto s = factor;
    if constexpr (kScaling != Scaling::kNone) s = LoadWideN(d, scale + i, n - i);
    const auto x = hn::Mul(LoadWideN(d, in + i, n - i), factor);
    StoreNarrowN(ScaleNormalized<kScaling, T>(d, x, s), d, out + i, n - i);
  }
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
  switch (dtype) {
    case DType::kFloat32:
      return RmsNorm<float, float>;
    case DType::kFloat16:
      return wide_scale ? RmsNorm<hwy::float16_t, float> : RmsNorm<hwy::float16_t, hwy::float16_t>;
    case DType::kBFloat16:
      return wide_scale ? RmsNorm<hwy::bfloat16_t, float>
                        : RmsNorm<hwy::bfloat16_t, hwy::bfloat16_t>;
    case DType::kFloat64:
      return RmsNorm<double, double>;
  }
  return nullptr;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
