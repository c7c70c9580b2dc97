#pragma once

// Compiles a file once per target, as hwy/foreach_target.h does, and once more for the scalar
// target with fused multiply-adds, in the namespace N_SCALAR_FMA: its results have the bits of the
// targets whose processors fuse (docs/determinism.md).

#include "hwy/foreach_target.h"

#define N_SCALAR N_SCALAR_FMA
#undef HWY_ONCE
#define HWY_ONCE 0
#include "hwy/highway.h"

namespace hwy {
namespace HWY_NAMESPACE {

/// a * b + c, rounded once.
inline double FusedMulAdd(double a, double b, double c) { return __builtin_fma(a, b, c); }

/// In double, the product of floats is exact. The sum is rounded to odd, which rounding to float
/// then does not notice (Boldo & Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
/// No call of a function, which may compute it by changing the rounding mode.
inline float FusedMulAdd(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
  return __builtin_fmaf(a, b, c);
#else
  const double product = double{a} * double{b};
  const double addend = double{c};
  const double sum = product + addend;
  const double added = sum - product;  // TwoSum (Knuth): sum + error is exact
  const double error = (product - (sum - added)) + (addend - added);
  auto bits = BitCastScalar<uint64_t>(sum);
  const bool is_inexact = error < 0 || error > 0;  // false for NaN
  if (is_inexact && (bits & 1) == 0) bits += (error > 0) == (sum > 0) ? 1 : ~uint64_t{0};
  return static_cast<float>(BitCastScalar<double>(bits));
#endif
}

// Preferred to Highway's templates, which round twice.
#define COREAI_FUSED(T)                                                              \
  HWY_API Vec1<T> MulAdd(const Vec1<T> mul, const Vec1<T> x, const Vec1<T> add) {    \
    return Vec1<T>(FusedMulAdd(mul.raw, x.raw, add.raw));                            \
  }                                                                                  \
  HWY_API Vec1<T> NegMulAdd(const Vec1<T> mul, const Vec1<T> x, const Vec1<T> add) { \
    return Vec1<T>(FusedMulAdd(-mul.raw, x.raw, add.raw));                           \
  }                                                                                  \
  HWY_API Vec1<T> MulSub(const Vec1<T> mul, const Vec1<T> x, const Vec1<T> sub) {    \
    return Vec1<T>(FusedMulAdd(mul.raw, x.raw, -sub.raw));                           \
  }
COREAI_FUSED(float)
COREAI_FUSED(double)
#undef COREAI_FUSED

}  // namespace HWY_NAMESPACE
}  // namespace hwy

#include HWY_TARGET_INCLUDE
#ifdef HWY_TARGET_TOGGLE
#undef HWY_TARGET_TOGGLE
#else
#define HWY_TARGET_TOGGLE
#endif
#undef N_SCALAR
#undef HWY_ONCE
#define HWY_ONCE 1
