// Included once per target by group_norm.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GROUP_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GROUP_NORM_INL_H_
#undef COREAI_KERNELS_GROUP_NORM_INL_H_
#else
#define COREAI_KERNELS_GROUP_NORM_INL_H_
#endif

#include "kernels/norms/group_norm.h"
#include "simd/lanes-inl.h"
#include "simd/reduce-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

template <typename T>
void GroupNorm(const GroupNormGroup& a) {
  using W = Wide<T>;
  const hn::ScalableTag<W> d;
  const size_t lanes = hn::Lanes(d);
  const size_t n = a.channels * a.places;
  const T* in = static_cast<const T*>(a.input);
  T* out = static_cast<T*>(a.output);
  const auto* scale = static_cast<const W*>(a.scale);
  const auto* bias = static_cast<const W*>(a.bias);
  const W mean = SumOver(Identity(), d, in, n) / static_cast<W>(n);
  const W variance = SumOver(SquareAround<W>{mean}, d, in, n) / static_cast<W>(n);
  const W inverse = InverseSqrt(variance + static_cast<W>(a.eps));
  const auto center = hn::Set(d, mean);
  for (size_t channel = 0; channel < a.channels; ++channel) {
    const auto factor = hn::Set(d, inverse);
    const auto gain = hn::Set(d, scale == nullptr ? W{1} : scale[channel]);
    const auto shift = hn::Set(d, bias == nullptr ? W{0} : bias[channel]);
    size_t i = 0;
    for (; i + lanes <= a.places; i += lanes) {
      const auto x = hn::Mul(hn::Sub(LoadWide(d, in + i), center), factor);
      StoreNarrow(hn::MulAdd(x, gain, shift), d, out + i);
    }
    if (const size_t rest = a.places - i; rest != 0) {
      const auto x = hn::Mul(hn::Sub(LoadWideN(d, in + i, rest), center), factor);
      StoreNarrowN(hn::MulAdd(x, gain, shift), d, out + i, rest);
    }
    in += a.places;
    out += a.places;
  }
}

inline GroupNormKernel SelectGroupNorm(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return GroupNorm<float>;
    case DType::kFloat16:
      return GroupNorm<hwy::float16_t>;
    case DType::kBFloat16:
      return GroupNorm<hwy::bfloat16_t>;
    case DType::kFloat64:
      return GroupNorm<double>;
  }
  return nullptr;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
