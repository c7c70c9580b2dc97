// Loads and stores that convert between a tensor's element type and the compute type.
// Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_SIMD_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_SIMD_LANES_INL_H_
#undef COREAI_SIMD_LANES_INL_H_
#else
#define COREAI_SIMD_LANES_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The compute type: double for double, float for all others.
template <typename T>
struct WideOf {
  using type = float;
};
template <>
struct WideOf<double> {
  using type = double;
};
template <typename T>
using Wide = typename WideOf<T>::type;

template <typename T>
inline constexpr bool kIsWide = hwy::IsSame<T, Wide<T>>();

/// Loads a full vector of `T` from any address, widened to the lanes of `d`.
template <typename T, class D>
HWY_INLINE hn::Vec<D> LoadWide(D d, const T* HWY_RESTRICT p) {
  if constexpr (hwy::IsSame<T, hn::TFromD<D>>()) {
    return hn::LoadU(d, p);
  } else {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<T, D>(), p));
  }
}

/// The same for the first `n` lanes; the others are zero and their memory is not accessed.
template <typename T, class D>
HWY_INLINE hn::Vec<D> LoadWideN(D d, const T* HWY_RESTRICT p, size_t n) {
  if constexpr (hwy::IsSame<T, hn::TFromD<D>>()) {
    return hn::LoadN(d, p, n);
  } else {
    return hn::PromoteTo(d, hn::LoadN(hn::Rebind<T, D>(), p, n));
  }
}

/// Rounds to `T` (to nearest, ties to even) and stores a full vector.
template <typename T, class D>
HWY_INLINE void StoreNarrow(hn::Vec<D> v, D d, T* HWY_RESTRICT p) {
  if constexpr (hwy::IsSame<T, hn::TFromD<D>>()) {
    hn::StoreU(v, d, p);
  } else {
    const hn::Rebind<T, D> narrow;
    hn::StoreU(hn::DemoteTo(narrow, v), narrow, p);
  }
}

/// The same for the first `n` lanes; no other memory is accessed.
template <typename T, class D>
HWY_INLINE void StoreNarrowN(hn::Vec<D> v, D d, T* HWY_RESTRICT p, size_t n) {
  if constexpr (hwy::IsSame<T, hn::TFromD<D>>()) {
    hn::StoreN(v, d, p, n);
  } else {
    const hn::Rebind<T, D> narrow;
    hn::StoreN(hn::DemoteTo(narrow, v), narrow, p, n);
  }
}

/// How ForEachVector loads and stores every vector but the last: all lanes.
struct AllLanes {
  template <typename T, class D>
  HWY_INLINE hn::Vec<D> Load(D d, const T* p) const {
    return LoadWide(d, p);
  }
  template <typename T, class D>
  HWY_INLINE void Store(hn::Vec<D> v, D d, T* p) const {
    StoreNarrow(v, d, p);
  }
};

/// How it loads and stores the last one: the first lanes, and no memory of the others.
struct FirstLanes {
  size_t count;
  template <typename T, class D>
  HWY_INLINE hn::Vec<D> Load(D d, const T* p) const {
    return LoadWideN(d, p, count);
  }
  template <typename T, class D>
  HWY_INLINE void Store(hn::Vec<D> v, D d, T* p) const {
    StoreNarrowN(v, d, p, count);
  }
};

// For lambdas with vectors. Compilers do not apply the target of the region to them, and one that
// is not inlined keeps the vectors that it captures in memory.
#define COREAI_INLINE_LAMBDA HWY_ATTR __attribute__((always_inline))

/// Calls step(i, lanes) for the index of each vector of `n` elements, where `lanes` is AllLanes or,
/// for the last one if it is not full, FirstLanes: main loop and tail are written once.
template <class D, class Step>
HWY_INLINE void ForEachVector(D d, size_t n, const Step& step) {
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) step(i, AllLanes());
  if (i < n) step(i, FirstLanes{n - i});
}

/// Converts `n` elements; one of the types is that of the lanes of `d`.
template <typename T, typename U, class D>
HWY_INLINE void ConvertRow(D d, const T* HWY_RESTRICT in, size_t n, U* HWY_RESTRICT out) {
  ForEachVector(d, n, [&](size_t i, auto lanes) COREAI_INLINE_LAMBDA {
    lanes.Store(lanes.Load(d, in + i), d, out + i);
  });
}

/// The value after storing to `T` and loading again.
template <typename T, class D>
HWY_INLINE hn::Vec<D> RoundTo(D d, hn::Vec<D> v) {
  if constexpr (hwy::IsSame<T, hn::TFromD<D>>()) {
    return v;
  } else {
    return hn::PromoteTo(d, hn::DemoteTo(hn::Rebind<T, D>(), v));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
