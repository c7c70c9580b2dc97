// Included once per target by norms.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_SOFTMAX_INL_H_
#undef COREAI_KERNELS_SOFTMAX_INL_H_
#else
#define COREAI_KERNELS_SOFTMAX_INL_H_
#endif

#include "kernels/norms/softmax.h"
#include "kernels/select-inl.h"
#include "simd/exp-inl.h"
#include "simd/lanes-inl.h"
#include "simd/reduce-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Sums the exponentials of what elements are below the largest.
template <typename W>
struct ExpBelow {
  W largest;
  template <class D, class V>
#if HWY_TARGET == HWY_SCALAR  // a copy for each of the lanes of a sum takes minutes to compile
  HWY_NOINLINE
#else
  HWY_INLINE
#endif
      V Add(D d, V x, V sum) const {
    return hn::Add(sum, ExpNonPositive(d, hn::Sub(x, hn::Set(d, largest))));
  }
};

// Any element where one is NaN: all differences to NaN are NaN, and so is their sum.
template <class D, typename T>
HWY_INLINE hn::TFromD<D> LargestOf(D d, const T* p, size_t n) {
  using W = hn::TFromD<D>;
  const size_t lanes = hn::Lanes(d);
  const hn::CappedTag<W, 1> one;
  auto first = hn::Set(one, hn::GetLane(LoadWideN(d, p, 1)));
  if (n >= lanes) {
    auto largest = LoadWide(d, p);
    // The last vector may overlap the one before it: a number counts twice.
    for (size_t i = lanes; i < n; i += lanes) {
      largest = hn::Max(largest, LoadWide(d, p + (i + lanes <= n ? i : n - lanes)));
    }
    return hn::ReduceMax(d, largest);
  }
  for (size_t i = 1; i < n; ++i) first = hn::Max(first, LoadWideN(one, p + i, 1));
  return hn::GetLane(first);
}

template <typename T>
void Softmax(const SoftmaxRows& a) {
  using W = Wide<T>;
  const hn::ScalableTag<W> d;
  const size_t n = a.row_size;
  for (size_t row = 0; row < a.rows; ++row) {
    const T* in = static_cast<const T*>(a.input) + row * n;
    T* out = static_cast<T*>(a.output) + row * n;
    const ExpBelow<W> term{LargestOf(d, in, n)};
    const auto largest = hn::Set(d, term.largest);
    const auto exp = [&](auto x)
                         COREAI_INLINE_LAMBDA { return ExpNonPositive(d, hn::Sub(x, largest)); };
    if constexpr (kIsWide<T>) {
      // The output holds the exponentials, so that each is computed once.
      ForEachVector(d, n, [&](size_t i, auto lanes) COREAI_INLINE_LAMBDA {
        lanes.Store(exp(lanes.Load(d, in + i)), d, out + i);
      });
      const auto factor = hn::Set(d, W{1} / SumOver(Identity(), d, out, n));
      ForEachVector(d, n, [&](size_t i, auto lanes) COREAI_INLINE_LAMBDA {
        lanes.Store(hn::Mul(lanes.Load(d, out + i), factor), d, out + i);
      });
    } else {
      const auto factor = hn::Set(d, W{1} / SumOver(term, d, in, n));
      ForEachVector(d, n, [&](size_t i, auto lanes) COREAI_INLINE_LAMBDA {
        lanes.Store(hn::Mul(exp(lanes.Load(d, in + i)), factor), d, out + i);
      });
    }
  }
}

inline SoftmaxKernel SelectSoftmax(DType dtype) {
  return SelectByDType(dtype, [](auto zero) -> SoftmaxKernel { return Softmax<decltype(zero)>; });
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
