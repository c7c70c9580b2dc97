// Included once per target by rope.cc.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_ROPE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_ROPE_INL_H_
#undef COREAI_KERNELS_ROPE_INL_H_
#else
#define COREAI_KERNELS_ROPE_INL_H_
#endif

#include "kernels/attention/rope.h"
#include "kernels/select-inl.h"
#include "simd/lanes-inl.h"
#include "simd/sincos-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Pairs (i, i + half). `in` may be `out`: no step loads what an earlier step stored.
template <typename T, typename S>
HWY_INLINE void RotateHalves(const T* in, const S* cos, const S* sin, size_t half, T* out) {
  const hn::ScalableTag<Wide<T>> d;
  ForEachVector(d, half, [&](size_t i, auto lanes) COREAI_INLINE_LAMBDA {
    const auto a = lanes.Load(d, in + i), b = lanes.Load(d, in + half + i);
    const auto c = lanes.Load(d, cos + i), s = lanes.Load(d, sin + i);
    lanes.Store(hn::NegMulAdd(s, b, hn::Mul(c, a)), d, out + i);
    lanes.Store(hn::MulAdd(s, a, hn::Mul(c, b)), d, out + half + i);
  });
}

#if HWY_TARGET == HWY_SCALAR

/// Pairs (2i, 2i + 1).
template <typename T, typename S>
HWY_INLINE void RotateNeighbors(const T* in, const S* cos, const S* sin, size_t half, T* out) {
  const hn::ScalableTag<Wide<T>> d;
  for (size_t i = 0; i < half; ++i) {
    const auto a = LoadWide(d, in + 2 * i), b = LoadWide(d, in + 2 * i + 1);
    const auto c = LoadWide(d, cos + i), s = LoadWide(d, sin + i);
    StoreNarrow(hn::MulSub(a, c, hn::Mul(b, s)), d, out + 2 * i);
    StoreNarrow(hn::MulAdd(b, c, hn::Mul(a, s)), d, out + 2 * i + 1);
  }
}

#else

/// A vector of pairs (a, b), with each cosine and sine repeated.
template <class D, class V>
HWY_INLINE V RotatePairs(D d, V x, V cos, V sin) {
  (void)d;
  return hn::MulAddSub(x, cos, hn::Mul(hn::Reverse2(d, x), sin));
}

/// Pairs (2i, 2i + 1).
template <typename T, typename S>
HWY_INLINE void RotateNeighbors(const T* in, const S* cos, const S* sin, size_t half, T* out) {
  const hn::ScalableTag<Wide<T>> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    const auto c = LoadWide(d, cos + i), s = LoadWide(d, sin + i);
    const auto low = LoadWide(d, in + 2 * i), high = LoadWide(d, in + 2 * i + lanes);
    const auto low_cos = hn::InterleaveWholeLower(d, c, c);
    const auto low_sin = hn::InterleaveWholeLower(d, s, s);
    const auto high_cos = hn::InterleaveWholeUpper(d, c, c);
    const auto high_sin = hn::InterleaveWholeUpper(d, s, s);
    StoreNarrow(RotatePairs(d, low, low_cos, low_sin), d, out + 2 * i);
    StoreNarrow(RotatePairs(d, high, high_cos, high_sin), d, out + 2 * i + lanes);
  }
  if (const size_t n = half - i; n != 0) {
    const size_t low_n = HWY_MIN(2 * n, lanes);
    const auto c = LoadWideN(d, cos + i, n), s = LoadWideN(d, sin + i, n);
    const auto low = LoadWideN(d, in + 2 * i, low_n);
    const auto high = LoadWideN(d, in + 2 * i + low_n, 2 * n - low_n);
    const auto low_cos = hn::InterleaveWholeLower(d, c, c);
    const auto low_sin = hn::InterleaveWholeLower(d, s, s);
    const auto high_cos = hn::InterleaveWholeUpper(d, c, c);
    const auto high_sin = hn::InterleaveWholeUpper(d, s, s);
    StoreNarrowN(RotatePairs(d, low, low_cos, low_sin), d, out + 2 * i, low_n);
    StoreNarrowN(RotatePairs(d, high, high_cos, high_sin), d, out + 2 * i + low_n, 2 * n - low_n);
  }
}

#endif

template <bool kInterleaved, typename T, typename S>
void Rope(const RopeRows& a) {
  const size_t rotated = 2 * a.half;
  for (size_t head = 0; head < a.heads; ++head) {
    const T* in = static_cast<const T*>(a.input) + head * a.head_stride;
    T* out = static_cast<T*>(a.output) + head * a.head_stride;
    const auto* cos = static_cast<const S*>(a.cos);
    const auto* sin = static_cast<const S*>(a.sin);
    for (size_t row = 0; row < a.rows; ++row) {
      if constexpr (kInterleaved) {
        RotateNeighbors(in, cos, sin, a.half, out);
      } else {
        RotateHalves(in, cos, sin, a.half, out);
      }
      if (rotated < a.head_dim && in != out) {
        // Lanes of T, so that the bits of a NaN stay.
        ConvertRow(hn::ScalableTag<T>(), in + rotated, a.head_dim - rotated, out + rotated);
      }
      in += a.head_dim;
      out += a.head_dim;
      cos += a.cos_stride;
      sin += a.sin_stride;
    }
  }
}

/// The angles are rounded to W; their sines and cosines are computed in double.
template <typename W>
void RopeAngleTable(const RopeAngles& a) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<W, decltype(d)> dw;
  const size_t lanes = hn::Lanes(d);
  const W* frequencies = static_cast<const W*>(a.frequencies);
  W* cos = static_cast<W*>(a.cos);
  W* sin = static_cast<W*>(a.sin);
  for (size_t row = 0; row < a.rows; ++row) {
    const auto position = hn::Set(dw, static_cast<const W*>(a.positions)[row]);
    for (size_t i = 0; i < a.half; i += lanes) {
      const size_t n = HWY_MIN(lanes, a.half - i);
      hn::Vec<decltype(d)> s, c;
      const auto angle = hn::Mul(position, hn::LoadN(dw, frequencies + i, n));
      if constexpr (hwy::IsSame<W, double>()) {
        SinCos(d, angle, &s, &c);
        hn::StoreN(s, dw, sin + i, n);
        hn::StoreN(c, dw, cos + i, n);
      } else {
        SinCos(d, hn::PromoteTo(d, angle), &s, &c);
        hn::StoreN(hn::DemoteTo(dw, s), dw, sin + i, n);
        hn::StoreN(hn::DemoteTo(dw, c), dw, cos + i, n);
      }
    }
    cos += a.half;
    sin += a.half;
  }
}

template <bool kInterleaved, typename T>
RopeKernel RopeWithTable(bool wide_table) {
  return wide_table ? Rope<kInterleaved, T, Wide<T>> : Rope<kInterleaved, T, T>;
}

inline RopeKernel SelectRope(DType dtype, bool wide_table, bool interleaved) {
  return SelectByDType(dtype, [=](auto zero) -> RopeKernel {
    using T = decltype(zero);
    return interleaved ? RopeWithTable<true, T>(wide_table) : RopeWithTable<false, T>(wide_table);
  });
}

inline RopeAnglesKernel SelectRopeAngles(DType wide) {
  return wide == DType::kFloat64 ? RopeAngleTable<double> : RopeAngleTable<float>;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
