// Sums over one row of memory. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_SIMD_REDUCE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_SIMD_REDUCE_INL_H_
#undef COREAI_SIMD_REDUCE_INL_H_
#else
#define COREAI_SIMD_REDUCE_INL_H_
#endif

#include "simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Lanes of a sum, on every target those of the widest vectors: so that it has one order.
template <typename W>
inline constexpr size_t kSumLanes = 64 / sizeof(W);

/// Sum of all lanes: halves are added until one lane is left.
template <class D>
HWY_INLINE hn::TFromD<D> SumOfHalves([[maybe_unused]] D d, hn::Vec<D> v) {
#if HWY_TARGET != HWY_SCALAR  // which has no halves
  if constexpr (hn::MaxLanes(d) > 1) {
    const hn::Half<D> half;
    return SumOfHalves(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
#endif
  return hn::GetLane(v);
}

/// The same of vectors that have kSumLanes together.
template <class D, size_t kVecs>
HWY_INLINE hn::TFromD<D> SumOfHalves(D d, hn::Vec<D> (&v)[kVecs]) {
  static_assert(kVecs * hn::MaxLanes(d) == kSumLanes<hn::TFromD<D>>, "all lanes of a sum");
#pragma GCC unroll 5
  for (size_t half = kVecs / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (size_t i = 0; i < half; ++i) v[i] = hn::Add(v[i], v[i + half]);
  }
  return SumOfHalves(d, v[0]);
}

/// Sum of term(x) over `n` elements of `T`, in four independent accumulators of kSumLanes so that
/// the latency of the addition is hidden. `term` must map the lanes of a vector independently.
template <class Term, typename T, class D>
HWY_INLINE hn::TFromD<D> SumOver(const Term& term, D d, const T* HWY_RESTRICT p, size_t n) {
  constexpr size_t kLanes = hn::MaxLanes(d), kStep = kSumLanes<hn::TFromD<D>>;
  constexpr size_t kVecs = kStep / kLanes;
  hn::Vec<D> sums[4][kVecs];
  const auto add = [&](size_t of, size_t i) COREAI_INLINE_LAMBDA {
#pragma GCC unroll 16
    for (size_t v = 0; v < kVecs; ++v) {
      sums[of][v] = term.Add(d, LoadWide(d, p + i + v * kLanes), sums[of][v]);
    }
  };
#pragma GCC unroll 4
  for (auto& sum : sums) {
#pragma GCC unroll 16
    for (size_t v = 0; v < kVecs; ++v) sum[v] = hn::Zero(d);
  }
  size_t i = 0;
  for (; i + 4 * kStep <= n; i += 4 * kStep) {
    add(0, i);
    add(1, i + kStep);
    add(2, i + 2 * kStep);
    add(3, i + 3 * kStep);
  }
  for (; i + kStep <= n; i += kStep) add(0, i);
#pragma GCC unroll 16
  for (size_t v = 0; v < kVecs; ++v, i += kLanes) {
    if (i + kLanes <= n) {
      sums[1][v] = term.Add(d, LoadWide(d, p + i), sums[1][v]);
    } else if (i < n) {
      const auto added = term.Add(d, LoadWideN(d, p + i, n - i), sums[1][v]);
      sums[1][v] = hn::IfThenElse(hn::FirstN(d, n - i), added, sums[1][v]);
    }
  }
#pragma GCC unroll 16
  for (size_t v = 0; v < kVecs; ++v) {
    sums[0][v] = hn::Add(hn::Add(sums[0][v], sums[1][v]), hn::Add(sums[2][v], sums[3][v]));
  }
  return SumOfHalves(d, sums[0]);
}

struct Identity {
  template <class D, class V>
  HWY_INLINE V Add(D, V x, V sum) const {
    return hn::Add(sum, x);
  }
};

struct Square {
  template <class D, class V>
  HWY_INLINE V Add(D, V x, V sum) const {
    return hn::MulAdd(x, x, sum);
  }
};

template <typename W>
struct SquareAround {
  W mean;
  template <class D, class V>
  HWY_INLINE V Add(D d, V x, V sum) const {
    const V centered = hn::Sub(x, hn::Set(d, mean));
    return hn::MulAdd(centered, centered, sum);
  }
};

/// 1 / sqrt(x), rounded twice.
template <typename W>
HWY_INLINE W InverseSqrt(W x) {
  const hn::CappedTag<W, 1> d;
  return hn::GetLane(hn::Div(hn::Set(d, W{1}), hn::Sqrt(hn::Set(d, x))));
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
