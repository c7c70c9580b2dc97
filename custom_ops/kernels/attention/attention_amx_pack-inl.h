// Packs keys and values of bfloat16 for products of tile registers, and weights as pairs of
// bfloat16. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_ATTENTION_AMX_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_ATTENTION_AMX_PACK_INL_H_
#undef COREAI_KERNELS_ATTENTION_AMX_PACK_INL_H_
#else
#define COREAI_KERNELS_ATTENTION_AMX_PACK_INL_H_
#endif

#include "kernels/attention/attention_tiles.h"
#include "simd/amx_pack-inl.h"
#include "simd/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Packs keys as tiles of 16 keys by 32 elements; their count is rounded up to 32. Keys without
/// elements are tiles of zeros.
inline void PackAmxKeys(const hwy::bfloat16_t* HWY_RESTRICT in, size_t count, size_t head_dim,
                        std::uint32_t* HWY_RESTRICT out) {
  const size_t keys = head_dim == 0 ? 0 : count;
  const auto row = [&](size_t key) { return key < keys ? in + key * head_dim : nullptr; };
  PackAmxRows(row, RoundUp(count, 2 * kAmxRows), HWY_MAX(head_dim, size_t{1}), out);
}

/// Packs values as transposed tiles of 16 columns by 32 keys: [value_dim / 16, count / 32] tiles.
inline void PackAmxValues(const hwy::bfloat16_t* HWY_RESTRICT in, size_t count, size_t value_dim,
                          std::uint32_t* HWY_RESTRICT out) {
  const auto row = [&](size_t key) { return key < count ? in + key * value_dim : nullptr; };
  for (size_t column = 0; column < value_dim; column += kAmxRows) {
    for (size_t key = 0; key < count; key += kAmxPairDepth, out += kAmxWords) {
      PackAmxPairs(row, key, column, value_dim, out);
      TransposeAmx(out);
    }
  }
}

/// Splits two vectors of weights in [0, 1] into pairs of bfloat16, first the weight of `a`: what
/// rounding toward zero gives, and what is left. Their sum has 16 bits of the weight. No part of a
/// weight is zero unless the weight is: an infinite value times zero would be NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void SplitWeights(D d, V a, V b, float* high, float* low) {
  const hn::RebindToUnsigned<D> du;
  const auto upper = hn::Set(du, 0xFFFF0000u);
  const V least = hn::Set(d, 0x1p-126f);
  const auto pair = [&](V first, V second) HWY_ATTR {
    return hn::OrAnd(hn::ShiftRight<16>(hn::BitCast(du, first)), hn::BitCast(du, second), upper);
  };
  const auto rest = [&](V x) HWY_ATTR {
    const V cut = hn::BitCast(d, hn::And(hn::BitCast(du, x), upper));
    return hn::Max(hn::Sub(x, cut), hn::Min(x, least));
  };
  hn::Store(hn::BitCast(d, pair(a, b)), d, high);
  hn::Store(hn::BitCast(d, pair(rest(a), rest(b))), d, low);
}

/// SoftmaxTile of attention_panel-inl.h for scores that are multiplied by `scale`. Weights of two
/// consecutive keys replace their scores: first the pairs that rounding gives, [kVecs vectors],
/// then what is left; up to a multiple of 32 keys they are zero. Returns whether a factor for
/// earlier sums is not 1. Calls meanwhile(part, parts) after each part of the work.
template <size_t kVecs, class Meanwhile>
bool SoftmaxPairs(float* scores, size_t keys, float scale, float* HWY_RESTRICT best,
                  float* HWY_RESTRICT total, float* HWY_RESTRICT rescale,
                  const Meanwhile& meanwhile) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  constexpr size_t kLanes = hn::MaxLanes(d);
  const V factor = hn::Set(d, scale), one = hn::Set(d, 1.0f);
  bool changed = false;
  constexpr size_t kPart = 8;  // keys
  const size_t parts = (keys + kPart - 1) / kPart;
  for (size_t v = 0; v < kVecs; ++v) {
    float* column = scores + v * kLanes;
    constexpr size_t kWidth = kVecs * kLanes;
    V top = hn::Load(d, best + v * kLanes), other = top;
    size_t key = 0;
    for (; key + 2 <= keys; key += 2) {
      top = hn::Max(top, hn::Mul(hn::Load(d, column + key * kWidth), factor));
      other = hn::Max(other, hn::Mul(hn::Load(d, column + (key + 1) * kWidth), factor));
    }
    if (key < keys) top = hn::Max(top, hn::Mul(hn::Load(d, column + key * kWidth), factor));
    top = hn::Max(top, other);
    const V old = hn::Load(d, best + v * kLanes);
    hn::Store(top, d, best + v * kLanes);
    // While all scores of a row are -inf, subtract zero: exp(-inf - 0) is 0 and not NaN.
    top = hn::IfThenZeroElse(hn::Eq(top, hn::Neg(hn::Inf(d))), top);
    const V earlier = ExpNonPositive(d, hn::Sub(old, top));
    hn::Store(earlier, d, rescale + v * kLanes);
    changed = changed || !hn::AllTrue(d, hn::Eq(earlier, one));
    V sum = hn::Zero(d), other_sum = hn::Zero(d);
    const auto weight = [&](size_t k) HWY_ATTR {
      // Not MulSub: the product must be rounded as in `top`. Otherwise, the difference of equal
      // scores is the error of rounding, whose exponential overflows if the scores are large.
      const V score = hn::Mul(hn::Load(d, column + k * kWidth), factor);
      return ExpNonPositive(d, hn::Sub(score, top));
    };
    for (size_t part = 0; part < parts; ++part) {
      const size_t end = HWY_MIN((part + 1) * kPart, keys / 2 * 2);
      for (key = part * kPart; key < end; key += 2) {
        const V a = weight(key), b = weight(key + 1);
        sum = hn::Add(sum, a);
        other_sum = hn::Add(other_sum, b);
        SplitWeights(d, a, b, column + key * kWidth, column + (key + 1) * kWidth);
      }
      meanwhile(v * parts + part + 1, kVecs * parts);
    }
    key = keys / 2 * 2;
    if (key < keys) {
      const V a = weight(key);
      sum = hn::Add(sum, a);
      SplitWeights(d, a, hn::Zero(d), column + key * kWidth, column + (key + 1) * kWidth);
      key += 2;
    }
    for (; key < RoundUp(keys, kAmxPairDepth); ++key) {
      hn::Store(hn::Zero(d), d, column + key * kWidth);
    }
    const V before = hn::Mul(hn::Load(d, total + v * kLanes), earlier);
    hn::Store(hn::Add(before, hn::Add(sum, other_sum)), d, total + v * kLanes);
  }
  return changed;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
