// Packs keys and values of bfloat16 for products of tile registers, and weights as pairs of
// bfloat16. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_ATTENTION_AMX_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_ATTENTION_AMX_PACK_INL_H_
#undef COREAI_KERNELS_ATTENTION_AMX_PACK_INL_H_
#else
#define COREAI_KERNELS_ATTENTION_AMX_PACK_INL_H_
#endif

#include "kernels/attention/attention_rows-inl.h"
#include "simd/amx_pack-inl.h"
#include "simd/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Packs keys as tiles of 16 keys by 32 elements; their count is rounded up to 32. Keys without
/// elements are tiles of zeros.
inline void PackAmxKeys(const AttentionTokens<hwy::bfloat16_t>& in, size_t first, size_t count,
                        size_t head_dim, std::uint32_t* HWY_RESTRICT out) {
  const size_t keys = head_dim == 0 ? 0 : count;
  const auto row = [&](size_t key) { return key < keys ? in[first + key] : nullptr; };
  PackAmxRows(row, RoundUp(count, 2 * kAmxRows), HWY_MAX(head_dim, size_t{1}), out);
}

/// Packs values as transposed tiles of 16 columns by 32 keys: [value_dim / 16, count / 32] tiles.
inline void PackAmxValues(const AttentionTokens<hwy::bfloat16_t>& in, size_t first, size_t count,
                          size_t value_dim, std::uint32_t* HWY_RESTRICT out) {
  const auto row = [&](size_t key) { return key < count ? in[first + key] : nullptr; };
  for (size_t column = 0; column < value_dim; column += kAmxRows) {
    for (size_t key = 0; key < count; key += kAmxPairDepth, out += kAmxWords) {
      PackAmxPairs(row, key, column, value_dim, out);
      TransposeAmx(out);
    }
  }
}

/// Moves the upper half of each lane to its lower half. The upper half of the result is arbitrary.
template <class DU, class VU = hn::Vec<DU>>
HWY_INLINE VU UpperHalves(DU du, VU x) {
#if HWY_TARGET == HWY_SCALAR
  (void)du;
  return hn::ShiftRight<16>(x);
#else
  // Unlike a shift of lanes, this leaves the port that multiplies to the exponentials.
  const hn::Repartition<std::uint8_t, DU> d8;
  return hn::BitCast(du, hn::ShiftRightBytes<2>(d8, hn::BitCast(d8, x)));
#endif
}

/// Splits two vectors of weights into pairs of bfloat16, first the weight of `a`: what
/// rounding toward zero gives, and what is left. Their sum has 16 bits of the weight. No part of a
/// weight above 2^-103 is zero, because what is left is increased by 2^-22 of the weight: an
/// infinite value times zero would be NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void SplitWeights(D d, V a, V b, float* high, float* low) {
  const hn::RebindToUnsigned<D> du;
  const auto upper = hn::Set(du, 0xFFFF0000u);
  const V above_one = hn::Set(d, 1.0f + 0x1p-22f);
  const auto pair = [&](V first, V second) HWY_ATTR {
    return hn::BitCast(d, hn::BitwiseIfThenElse(upper, hn::BitCast(du, second),
                                                UpperHalves(du, hn::BitCast(du, first))));
  };
  const auto rest = [&](V x) HWY_ATTR {
    return hn::MulSub(x, above_one, hn::BitCast(d, hn::And(hn::BitCast(du, x), upper)));
  };
  hn::Store(pair(a, b), d, high);
  hn::Store(pair(rest(a), rest(b)), d, low);
}

/// How far, in powers of two, a score may exceed the one that is subtracted from all. As long as
/// none exceeds it by more, earlier sums need no factor.
inline constexpr float kLazyExponent = 8;

/// From this exponent on, scores are multiplied and rounded like the one that is subtracted, before
/// the difference is formed. With one rounding, the difference of equal scores would be that
/// rounding's error, whose power of two overflows if scores are large.
inline constexpr float kExactExponent = 0x1p20f;

/// SoftmaxTile of attention_panel-inl.h for scores that are multiplied by `scale`, as exponents of
/// two. `best` is the score that is subtracted, at most kLazyExponent below the largest. Weights of
/// two consecutive keys replace their scores: first the pairs that rounding gives, [kVecs vectors],
/// then what is left; up to a multiple of 32 keys they are zero. Returns whether a factor for
/// earlier sums is not 1. Calls meanwhile(part, parts) after each part of the work.
template <size_t kVecs, class Meanwhile>
bool SoftmaxPairs(float* scores, size_t keys, float scale, float* HWY_RESTRICT best,
                  float* HWY_RESTRICT total, float* HWY_RESTRICT rescale,
                  const Meanwhile& meanwhile) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  constexpr size_t kLanes = hn::MaxLanes(d), kWidth = kVecs * kLanes;
  const V factor = hn::Set(d, scale);
  bool changed = false;
  constexpr size_t kPart = 8;  // keys
  const size_t parts = (keys + kPart - 1) / kPart;
  for (size_t v = 0; v < kVecs; ++v) {
    float* column = scores + v * kLanes;
    V top = hn::Neg(hn::Inf(d)), other = top;
    size_t key = 0;
    for (; key + 2 <= keys; key += 2) {
      top = hn::Max(top, hn::Load(d, column + key * kWidth));
      other = hn::Max(other, hn::Load(d, column + (key + 1) * kWidth));
    }
    if (key < keys) top = hn::Max(top, hn::Load(d, column + key * kWidth));
    const V old = hn::Load(d, best + v * kLanes);
    top = hn::Mul(hn::Max(top, other), factor);
    top = hn::IfThenElse(hn::Gt(top, hn::Add(old, hn::Set(d, kLazyExponent))), top, old);
    hn::Store(top, d, best + v * kLanes);
    // While all scores of a row are -inf, subtract zero: the weight is 0 and not NaN.
    const auto none = hn::Eq(old, hn::Neg(hn::Inf(d)));
    top = hn::IfThenZeroElse(hn::Eq(top, hn::Neg(hn::Inf(d))), top);
    const V earlier = Exp2NonPositive(d, hn::Sub(old, top));
    hn::Store(earlier, d, rescale + v * kLanes);
    changed = changed || !hn::AllTrue(d, hn::Or(none, hn::Eq(earlier, hn::Set(d, 1.0f))));
    V by = factor;
    if (!hn::AllFalse(d, hn::Ge(hn::Abs(top), hn::Set(d, kExactExponent)))) {
      for (size_t k = 0; k < keys; ++k) {
        float* score = column + k * kWidth;
        hn::Store(hn::Mul(hn::Load(d, score), factor), d, score);
      }
      by = hn::Set(d, 1.0f);
    }
    V sum = hn::Zero(d), other_sum = hn::Zero(d);
    const auto weight = [&](size_t k) HWY_ATTR {
      return Exp2NonPositive(d, hn::MulSub(hn::Load(d, column + k * kWidth), by, top));
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
