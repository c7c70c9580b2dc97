#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/simd/lanes_test.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Copies `n` elements through the compute type.
template <typename T>
void CopyThrough(const T* in, T* out, size_t n) {
  ConvertRow(hn::ScalableTag<Wide<T>>(), in, n, out);
}

template <typename T>
void Narrow(const float* in, T* out, size_t n) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const size_t count = HWY_MIN(hn::Lanes(d), n - i);
    StoreNarrowN(hn::LoadN(d, in + i, count), d, out + i, count);
  }
}

inline void CopyHalf(const void* in, void* out, size_t n) {
  CopyThrough(static_cast<const hwy::float16_t*>(in), static_cast<hwy::float16_t*>(out), n);
}
inline void CopyBFloat(const void* in, void* out, size_t n) {
  CopyThrough(static_cast<const hwy::bfloat16_t*>(in), static_cast<hwy::bfloat16_t*>(out), n);
}
inline void NarrowHalf(const float* in, void* out, size_t n) {
  Narrow(in, static_cast<hwy::float16_t*>(out), n);
}
inline void NarrowBFloat(const float* in, void* out, size_t n) {
  Narrow(in, static_cast<hwy::bfloat16_t*>(out), n);
}

/// Writes x[i] * x[i + 1] + x[i + 2], x[i + 2] - x[i] * x[i + 1] and x[i] * x[i + 1] - x[i + 2].
template <typename W>
void MultiplyAndAdd(const W* x, W* out, size_t n) {
  const hn::CappedTag<W, 1> d;
  for (size_t i = 0; i < n; ++i) {
    const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + 1), c = hn::LoadU(d, x + i + 2);
    hn::StoreU(hn::MulAdd(a, b, c), d, out + 3 * i);
    hn::StoreU(hn::NegMulAdd(a, b, c), d, out + 3 * i + 1);
    hn::StoreU(hn::MulSub(a, b, c), d, out + 3 * i + 2);
  }
}
inline void MultiplyAndAddFloats(const float* x, float* out, size_t n) {
  MultiplyAndAdd(x, out, n);
}
inline void MultiplyAndAddDoubles(const double* x, double* out, size_t n) {
  MultiplyAndAdd(x, out, n);
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "simd/dispatch.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

using Copy = void (*)(const void*, void*, std::size_t);
using NarrowFrom = void (*)(const float*, void*, std::size_t);
constexpr Copy kCopyHalf[] = COREAI_TARGETS(CopyHalf);
constexpr Copy kCopyBFloat[] = COREAI_TARGETS(CopyBFloat);
constexpr NarrowFrom kNarrowHalf[] = COREAI_TARGETS(NarrowHalf);
constexpr NarrowFrom kNarrowBFloat[] = COREAI_TARGETS(NarrowBFloat);
constexpr void (*kMultiplyFloats[])(const float*, float*,
                                    std::size_t) = COREAI_TARGETS(MultiplyAndAddFloats);
constexpr void (*kMultiplyDoubles[])(const double*, double*,
                                     std::size_t) = COREAI_TARGETS(MultiplyAndAddDoubles);

// Numbers of any exponent and their like, whose products often cancel, and special ones.
template <typename W, typename Bits>
void ExpectFused(void (*multiply)(const W*, W*, std::size_t)) {
  std::mt19937_64 random(3);
  std::vector<W> x;
  for (int i = 0; i < 100000; ++i) {
    auto bits = static_cast<Bits>(random());
    const W near = i % 3 == 2 ? -x[x.size() - 2] * x[x.size() - 1] : W{0};
    if (i % 7 < 4 && near != 0) std::memcpy(&bits, &near, sizeof(W));
    std::memcpy(&x.emplace_back(), &bits, sizeof(W));
  }
  const W ends[] = {0,
                    W{-0.0},
                    INFINITY,
                    -INFINITY,
                    std::numeric_limits<W>::denorm_min(),
                    std::numeric_limits<W>::max(),
                    std::numeric_limits<W>::min()};
  for (const W a : ends) {
    for (const W b : ends) x.insert(x.end(), {a, b, 1, b, a});
  }
  const std::size_t n = x.size() - 2;
  std::vector<W> out(3 * n);
  multiply(x.data(), out.data(), n);
  for (std::size_t i = 0; i < 3 * n; ++i) {
    const W a = i % 3 == 1 ? -x[i / 3] : x[i / 3];
    const W c = i % 3 == 2 ? -x[i / 3 + 2] : x[i / 3 + 2];
    const W expected = std::fma(a, x[i / 3 + 1], c);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(out[i])) << a << ' ' << x[i / 3 + 1] << ' ' << c;
    } else {
      ASSERT_EQ(std::memcmp(&out[i], &expected, sizeof(W)), 0)
          << a << " * " << x[i / 3 + 1] << " + " << c << " is " << out[i];
    }
  }
}

TEST(Lanes, AllTargetsButOneRoundProductsAndSumsOnce) {
  for (const Target target : SupportedTargets()) {
    if (target == Target::kScalar) continue;
    SCOPED_TRACE(TargetName(target));
    ExpectFused<float, std::uint32_t>(kMultiplyFloats[static_cast<std::size_t>(target)]);
    ExpectFused<double, std::uint64_t>(kMultiplyDoubles[static_cast<std::size_t>(target)]);
  }
}

// Every 16-bit pattern survives the way through float; NaN stays some NaN.
TEST(Lanes, EverySixteenBitNumberSurvives) {
  std::vector<std::uint16_t> in(65536), out(65536);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::uint16_t>(i);
  for (const Target target : SupportedTargets()) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      const auto* table = dtype == DType::kFloat16 ? kCopyHalf : kCopyBFloat;
      table[static_cast<std::size_t>(target)](in.data(), out.data(), in.size() - 3);
      for (std::size_t i = 0; i < in.size() - 3; ++i) {
        const bool same = out[i] == in[i] || (std::isnan(FromBits16(in[i], dtype)) &&
                                              std::isnan(FromBits16(out[i], dtype)));
        ASSERT_TRUE(same) << TargetName(target) << ' ' << Name(dtype) << ' ' << i << " -> "
                          << out[i];
      }
    }
  }
}

// Random bit patterns of float, and the middles between neighbors, round to nearest even.
TEST(Lanes, NarrowingRoundsToNearestEven) {
  std::mt19937 generator(11);
  std::vector<float> in;
  for (int i = 0; i < 50000; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(generator());
    for (const std::uint32_t pattern :
         {bits, (bits & 0xFFFF0000u) | 0x8000u, (bits & 0xFFFFE000u) | 0x1000u}) {
      float value;
      std::memcpy(&value, &pattern, sizeof(value));
      in.push_back(value);
    }
  }
  std::vector<std::uint16_t> out(in.size());
  for (const Target target : SupportedTargets()) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      const auto* table = dtype == DType::kFloat16 ? kNarrowHalf : kNarrowBFloat;
      table[static_cast<std::size_t>(target)](in.data(), out.data(), in.size());
      for (std::size_t i = 0; i < in.size(); ++i) {
        const double want = Quantize(in[i], dtype);
        const double got = FromBits16(out[i], dtype);
        ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
            << TargetName(target) << ' ' << Name(dtype) << ' ' << in[i] << " -> " << got << ", not "
            << want;
      }
    }
  }
}

}  // namespace
}  // namespace coreai::testing
#endif
