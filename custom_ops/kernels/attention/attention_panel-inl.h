// Softcap, masks and softmax of the scores of a panel, which is kVecs vectors of rows wide.
// Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_ATTENTION_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_ATTENTION_PANEL_INL_H_
#undef COREAI_KERNELS_ATTENTION_PANEL_INL_H_
#else
#define COREAI_KERNELS_ATTENTION_PANEL_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "kernels/attention/attention_tiles.h"
#include "simd/exp-inl.h"
#include "simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// scores = softcap * tanh(scores / softcap).
template <typename W>
void CapScores(W* HWY_RESTRICT scores, size_t count, W softcap) {
  const hn::ScalableTag<W> d;
  const auto cap = hn::Set(d, softcap);
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    const auto x = hn::Div(hn::Load(d, scores + i), cap);
    const auto y = hn::IfThenElse(hn::IsNaN(x), x, hn::Tanh(d, x));
    hn::Store(hn::Mul(cap, y), d, scores + i);
  }
}

/// Masks the keys to which a row does not attend; bit i of attends[key] belongs to row i.
template <size_t kVecs, typename W>
void ApplyBits(W* HWY_RESTRICT scores, size_t keys, const std::uint64_t* HWY_RESTRICT attends) {
  const hn::ScalableTag<W> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  const auto hidden = hn::Neg(hn::Inf(d));
  for (size_t key = 0; key < keys; ++key) {
#pragma GCC unroll 3
    for (size_t v = 0; v < kVecs; ++v) {
      const std::uint64_t bits = attends[key] >> (v * kLanes);
      const auto attend = hn::LoadMaskBits(d, reinterpret_cast<const std::uint8_t*>(&bits));
      W* p = scores + (key * kVecs + v) * kLanes;
      hn::Store(hn::IfThenElse(attend, hn::Load(d, p), hidden), d, p);
    }
  }
}

/// Applies a mask that FillBias wrote. A bool mask replaces masked scores, also NaN; a float mask
/// is added.
template <typename W>
void ApplyBias(W* HWY_RESTRICT scores, const W* HWY_RESTRICT bias, size_t count, bool replace) {
  const hn::ScalableTag<W> d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    const auto s = hn::Load(d, scores + i);
    const auto b = hn::Load(d, bias + i);
    const auto masked = replace ? hn::IfThenElse(hn::Eq(b, hn::Zero(d)), s, b) : hn::Add(s, b);
    hn::Store(masked, d, scores + i);
  }
}

/// Masks those of keys [key, end) that are outside [first[row], last[row]), counted from the first
/// key of `scores`.
template <size_t kVecs, typename W>
void ApplyRange(W* HWY_RESTRICT scores, size_t key, size_t end, const W* HWY_RESTRICT first,
                const W* HWY_RESTRICT last) {
  const hn::ScalableTag<W> d;
  const size_t lanes = hn::Lanes(d);
  const auto hidden = hn::Neg(hn::Inf(d));
  for (; key < end; ++key) {
    const auto k = hn::Set(d, static_cast<W>(key));
    for (size_t v = 0; v < kVecs; ++v) {
      W* p = scores + (key * kVecs + v) * lanes;
      const auto inside = hn::And(hn::Ge(k, hn::Load(d, first + v * lanes)),
                                  hn::Lt(k, hn::Load(d, last + v * lanes)));
      hn::Store(hn::IfThenElse(inside, hn::Load(d, p), hidden), d, p);
    }
  }
}

/// Replaces a tile of scores with exp(score - best), updates the running maximum and sum of each
/// row (Milakov & Gimelshein 2018, "Online normalizer calculation for softmax"), and writes to
/// `rescale` the factor for earlier sums.
template <size_t kVecs, typename W>
void SoftmaxTile(W* HWY_RESTRICT scores, size_t keys, W* HWY_RESTRICT best, W* HWY_RESTRICT total,
                 W* HWY_RESTRICT rescale) {
  const hn::ScalableTag<W> d;
  using V = hn::Vec<decltype(d)>;
  const size_t lanes = hn::Lanes(d);
  V top[kVecs], sum[kVecs];
  for (size_t v = 0; v < kVecs; ++v) {
    top[v] = hn::Load(d, best + v * lanes);
    sum[v] = hn::Zero(d);
  }
  for (size_t key = 0; key < keys; ++key) {
    for (size_t v = 0; v < kVecs; ++v) {
      top[v] = hn::Max(top[v], hn::Load(d, scores + (key * kVecs + v) * lanes));
    }
  }
  for (size_t v = 0; v < kVecs; ++v) {
    const V old = hn::Load(d, best + v * lanes);
    hn::Store(top[v], d, best + v * lanes);
    // While all scores of a row are -inf, subtract zero: exp(-inf - 0) is 0 and not NaN.
    top[v] = hn::IfThenZeroElse(hn::Eq(top[v], hn::Neg(hn::Inf(d))), top[v]);
    hn::Store(ExpNonPositive(d, hn::Sub(old, top[v])), d, rescale + v * lanes);
  }
  for (size_t key = 0; key < keys; ++key) {
    for (size_t v = 0; v < kVecs; ++v) {
      W* p = scores + (key * kVecs + v) * lanes;
      const V e = ExpNonPositive(d, hn::Sub(hn::Load(d, p), top[v]));
      hn::Store(e, d, p);
      sum[v] = hn::Add(sum[v], e);
    }
  }
  for (size_t v = 0; v < kVecs; ++v) {
    const V before = hn::Mul(hn::Load(d, total + v * lanes), hn::Load(d, rescale + v * lanes));
    hn::Store(hn::Add(before, sum[v]), d, total + v * lanes);
  }
}

/// Multiplies the sums of a panel, [columns, kVecs vectors], by factor[:].
template <size_t kVecs, typename W>
void ScalePanel(W* HWY_RESTRICT sums, size_t columns, const W* HWY_RESTRICT factor) {
  const hn::ScalableTag<W> d;
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < columns; ++i) {
    for (size_t v = 0; v < kVecs; ++v) {
      W* p = sums + (i * kVecs + v) * lanes;
      hn::Store(hn::Mul(hn::Load(d, p), hn::Load(d, factor + v * lanes)), d, p);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
