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

/// Sum of term(x) over `n` elements of `T`, in four independent accumulators so that the latency
/// of the addition is hidden. `term` must map the lanes of a vector independently; `masked(x, k)`
/// is the same with zeros from lane `k` on.
template <class Term, typename T, class D>
HWY_INLINE hn::TFromD<D> SumOver(const Term& term, D d, const T* HWY_RESTRICT p, size_t n) {
  const size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    sum0 = term.Add(d, LoadWide(d, p + i), sum0);
    sum1 = term.Add(d, LoadWide(d, p + i + lanes), sum1);
    sum2 = term.Add(d, LoadWide(d, p + i + 2 * lanes), sum2);
    sum3 = term.Add(d, LoadWide(d, p + i + 3 * lanes), sum3);
  }
  for (; i + lanes <= n; i += lanes) {
    sum0 = term.Add(d, LoadWide(d, p + i), sum0);
  }
  if (i < n) {
    const auto added = term.Add(d, LoadWideN(d, p + i, n - i), sum1);
    sum1 = hn::IfThenElse(hn::FirstN(d, n - i), added, sum1);
  }
  return hn::ReduceSum(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3)));
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
