// Floats as sums of bfloat16.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/simd/parts_test.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "simd/parts-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// sums[i] = the sum of the first kParts parts of x[i] (i even in `even`).
template <size_t kParts>
void SumParts(const float* even, const float* odd, float* even_sum, float* odd_sum, size_t n) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    hn::Vec<decltype(d)> parts[kParts];
    SplitPairs(d, hn::LoadU(d, even + i), hn::LoadU(d, odd + i), parts);
    auto low = hn::Zero(d), high = hn::Zero(d);
    for (size_t j = kParts; j-- > 0;) {
      const auto bits = hn::BitCast(du, parts[j]);
      low = hn::Add(low, hn::BitCast(d, hn::ShiftLeft<16>(bits)));
      high = hn::Add(high, hn::BitCast(d, hn::And(bits, hn::Set(du, 0xFFFF0000u))));
    }
    hn::StoreU(low, d, even_sum + i);
    hn::StoreU(high, d, odd_sum + i);
  }
}

inline void SumOfOne(const float* a, const float* b, float* x, float* y, size_t n) {
  SumParts<1>(a, b, x, y, n);
}
inline void SumOfTwo(const float* a, const float* b, float* x, float* y, size_t n) {
  SumParts<2>(a, b, x, y, n);
}
inline void SumOfThree(const float* a, const float* b, float* x, float* y, size_t n) {
  SumParts<3>(a, b, x, y, n);
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "simd/dispatch.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

using Sum = void (*)(const float*, const float*, float*, float*, std::size_t);
constexpr Sum kSums[][kTargetCount] = {COREAI_TARGETS(SumOfOne), COREAI_TARGETS(SumOfTwo),
                                       COREAI_TARGETS(SumOfThree)};
constexpr std::size_t kCount = 256;

std::vector<float> Numbers(DType dtype, unsigned seed) {
  std::vector<float> x(kCount);
  const std::vector<double> from = Normal(kCount, seed, 0, 100);
  for (std::size_t i = 0; i < kCount; ++i) x[i] = static_cast<float>(Quantize(from[i], dtype));
  return x;
}

TEST(Parts, OfEachTypeAddUpToTheNumber) {
  const DType types[] = {DType::kBFloat16, DType::kFloat16, DType::kFloat32};
  for (std::size_t parts = 0; parts < 3; ++parts) {
    const std::vector<float> even = Numbers(types[parts], 1), odd = Numbers(types[parts], 2);
    for (const Target target : SupportedTargets()) {
      std::vector<float> even_sum(kCount), odd_sum(kCount);
      kSums[parts][static_cast<std::size_t>(target)](even.data(), odd.data(), even_sum.data(),
                                                     odd_sum.data(), kCount);
      EXPECT_EQ(even_sum, even) << TargetName(target) << ' ' << parts + 1;
      EXPECT_EQ(odd_sum, odd) << TargetName(target) << ' ' << parts + 1;
    }
  }
}

TEST(Parts, KeepNanAndZero) {
  const std::vector<float> even(kCount, NAN), odd(kCount, 0.0f);
  for (const Target target : SupportedTargets()) {
    std::vector<float> even_sum(kCount), odd_sum(kCount);
    kSums[2][static_cast<std::size_t>(target)](even.data(), odd.data(), even_sum.data(),
                                               odd_sum.data(), kCount);
    EXPECT_TRUE(std::isnan(even_sum[0]) && std::isnan(even_sum[kCount - 1])) << TargetName(target);
    EXPECT_EQ(odd_sum, odd) << TargetName(target);
  }
}

}  // namespace
}  // namespace coreai::testing
#endif
