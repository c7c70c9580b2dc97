// Included once per target by norms.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GROUP_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GROUP_NORM_INL_H_
#undef COREAI_KERNELS_GROUP_NORM_INL_H_
#else
#define COREAI_KERNELS_GROUP_NORM_INL_H_
#endif

#include "kernels/norms/group_norm.h"
#include "kernels/select-inl.h"
#include "simd/lanes-inl.h"
#include "simd/reduce-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

template <typename T>
void GroupNorm(const GroupNormGroup& a) {
  using W = Wide<T>;
  const hn::ScalableTag<W> d;
  const size_t n = a.channels * a.places;
  const T* in = static_cast<const T*>(a.input);
  T* out = static_cast<T*>(a.output);
  const auto* scale = static_cast<const W*>(a.scale);
  const auto* bias = static_cast<const W*>(a.bias);
  const W mean = SumOver(Identity(), d, in, n) / static_cast<W>(n);
  const W variance = SumOver(SquareAround<W>{mean}, d, in, n) / static_cast<W>(n);
  const W inverse = InverseSqrt(variance + static_cast<W>(a.eps));
  const auto center = hn::Set(d, mean);
  const auto factor = hn::Set(d, inverse);
  for (size_t channel = 0; channel < a.channels; ++channel) {
    const auto gain = hn::Set(d, scale == nullptr ? W{1} : scale[channel]);
    const auto shift = hn::Set(d, bias == nullptr ? W{0} : bias[channel]);
    ForEachVector(d, a.places, [&](size_t i, auto lanes) COREAI_INLINE_LAMBDA {
      const auto x = hn::Mul(hn::Sub(lanes.Load(d, in + i), center), factor);
      lanes.Store(hn::MulAdd(x, gain, shift), d, out + i);
    });
    in += a.places;
    out += a.places;
  }
}

inline GroupNormKernel SelectGroupNorm(DType dtype) {
  return SelectByDType(dtype,
                       [](auto zero) -> GroupNormKernel { return GroupNorm<decltype(zero)>; });
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
