#pragma once

#include <cmath>
#include <cstdint>

#include "kit/floats.h"

namespace coreai {

namespace bits {

/// 2^n for n in [-126, 127].
inline float PowerOfTwo(std::int32_t n) {
  return FloatOf(static_cast<std::uint32_t>(n + 127) << 23);
}

}  // namespace bits

/// exp(x) with an error below 2 units in the last place. It has no branches and calls no function,
/// so that compilers vectorize a loop over it, unlike std::exp.
///
/// exp(x) = 2^n exp(r) with |r| <= ln(2) / 2, by Cody and Waite ("Software Manual for the
/// Elementary Functions", 1980, chapter 6); exp(r) is the Taylor polynomial of degree 7, whose
/// remainder is below 2^-27.
inline float Exp(float x) {
  const float bounded = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;
  const float shifted = bounded * 1.44269504f + 12582912.0f;  // 1.5 * 2^23 rounds to an integer
  const float n = shifted - 12582912.0f;
  const float r = (bounded - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  const auto whole = static_cast<std::int32_t>(n);
  const std::int32_t half = whole >> 1;  // in two steps: 2^n alone may be no normal number
  const float scaled = p * bits::PowerOfTwo(half) * bits::PowerOfTwo(whole - half);
  return x != x ? x : scaled;
}

inline double Exp(double x) { return std::exp(x); }

/// 1 / (1 + exp(-x)).
template <class T>
inline T Sigmoid(T x) {
  return 1 / (1 + Exp(-x));
}

}  // namespace coreai
