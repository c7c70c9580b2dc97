#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/simd/lanes_test.cc"
#include "hwy/foreach_target.h"
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
