// The three steps of a tile of attention for one panel, which is kVecs vectors of rows wide:
// scores, softmax, weighted sum of values. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_ATTENTION_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_ATTENTION_PANEL_INL_H_
#undef COREAI_KERNELS_ATTENTION_PANEL_INL_H_
#else
#define COREAI_KERNELS_ATTENTION_PANEL_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "simd/exp-inl.h"
#include "simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

// Accumulators of the register tile: kBlock rows of the left factor times kMaxVecs vectors. 24 + 5
// of 32 registers, or 12 + 3 of 16.
inline constexpr size_t kBlock = 6;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SCALAR
inline constexpr size_t kMaxVecs = 2;
#else
inline constexpr size_t kMaxVecs = 4;
#endif

/// out[i, :] = start[i, :] + sum over k of left[i * row_stride + k * depth_stride] * right[k, :]
/// for kRows rows. `right` is [depth, width] and `out` is [kRows, width], width being kVecs
/// vectors. start is zero, or `out` as it was, times factor[:].
template <size_t kRows, size_t kVecs, bool kAccumulate, typename W>
HWY_INLINE void MultiplyBlock(const W* HWY_RESTRICT left, size_t row_stride, size_t depth_stride,
                              const W* HWY_RESTRICT right, size_t depth,
                              const W* HWY_RESTRICT factor, W* HWY_RESTRICT out) {
  const hn::ScalableTag<W> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  constexpr size_t kWidth = kVecs * kLanes;
  hn::Vec<decltype(d)> sums[kRows][kVecs];
#pragma GCC unroll 8
  for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) {
      if constexpr (kAccumulate) {
        sums[i][v] =
            hn::Mul(hn::Load(d, out + i * kWidth + v * kLanes), hn::Load(d, factor + v * kLanes));
      } else {
        sums[i][v] = hn::Zero(d);
      }
    }
  }
  for (size_t k = 0; k < depth; ++k) {
    hn::Vec<decltype(d)> b[kVecs];
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) b[v] = hn::Load(d, right + k * kWidth + v * kLanes);
#pragma GCC unroll 8
    for (size_t i = 0; i < kRows; ++i) {
      const auto a = hn::Set(d, left[i * row_stride + k * depth_stride]);
#pragma GCC unroll 4
      for (size_t v = 0; v < kVecs; ++v) sums[i][v] = hn::MulAdd(a, b[v], sums[i][v]);
    }
  }
#pragma GCC unroll 8
  for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) {
      hn::Store(sums[i][v], d, out + i * kWidth + v * kLanes);
    }
  }
}

/// MultiplyBlock for any number of rows.
template <size_t kVecs, bool kAccumulate, typename W>
void Multiply(const W* HWY_RESTRICT left, size_t rows, size_t row_stride, size_t depth_stride,
              const W* HWY_RESTRICT right, size_t depth, const W* HWY_RESTRICT factor,
              W* HWY_RESTRICT out) {
  const size_t width = kVecs * hn::Lanes(hn::ScalableTag<W>());
  for (; rows >= kBlock; rows -= kBlock) {
    MultiplyBlock<kBlock, kVecs, kAccumulate>(left, row_stride, depth_stride, right, depth, factor,
                                              out);
    left += kBlock * row_stride;
    out += kBlock * width;
  }
  switch (rows) {
    case 5:
      return MultiplyBlock<5, kVecs, kAccumulate>(left, row_stride, depth_stride, right, depth,
                                                  factor, out);
    case 4:
      return MultiplyBlock<4, kVecs, kAccumulate>(left, row_stride, depth_stride, right, depth,
                                                  factor, out);
    case 3:
      return MultiplyBlock<3, kVecs, kAccumulate>(left, row_stride, depth_stride, right, depth,
                                                  factor, out);
    case 2:
      return MultiplyBlock<2, kVecs, kAccumulate>(left, row_stride, depth_stride, right, depth,
                                                  factor, out);
    case 1:
      return MultiplyBlock<1, kVecs, kAccumulate>(left, row_stride, depth_stride, right, depth,
                                                  factor, out);
    default:
      return;
  }
}

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

/// Applies a mask that FillBias wrote. A bool mask replaces the score, so that a NaN there is gone
/// as well; a float mask is added.
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

/// Hides keys outside [first[row], last[row]), which are counted from the tile's first key.
template <size_t kVecs, typename W>
void ApplyRange(W* HWY_RESTRICT scores, size_t keys, const W* HWY_RESTRICT first,
                const W* HWY_RESTRICT last) {
  const hn::ScalableTag<W> d;
  const size_t lanes = hn::Lanes(d);
  const auto hidden = hn::Neg(hn::Inf(d));
  for (size_t key = 0; key < keys; ++key) {
    const auto k = hn::Set(d, static_cast<W>(key));
    for (size_t v = 0; v < kVecs; ++v) {
      W* p = scores + (key * kVecs + v) * lanes;
      const auto inside = hn::And(hn::Ge(k, hn::Load(d, first + v * lanes)),
                                  hn::Lt(k, hn::Load(d, last + v * lanes)));
      hn::Store(hn::IfThenElse(inside, hn::Load(d, p), hidden), d, p);
    }
  }
}

/// Turns a tile of scores into exp(score - best), updates the running maximum and sum of each row
/// (Milakov & Gimelshein 2018, "Online normalizer calculation for softmax"), and leaves in
/// `rescale` what earlier sums have to be multiplied by.
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
    // While a row has seen nothing but -inf, subtract zero: exp(-inf - 0) is 0 and not NaN.
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

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
