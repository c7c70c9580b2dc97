#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/simd/sincos_test.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "simd/sincos-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

inline void SinCosOfOne(double x, double* sin, double* cos) {
  const hn::ScalableTag<double> d;
  hn::Vec<decltype(d)> s, c;
  SinCos(d, hn::Set(d, x), &s, &c);
  *sin = hn::GetLane(s);
  *cos = hn::GetLane(c);
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>
#include <random>

#include "simd/dispatch.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

constexpr void (*kSinCos[])(double, double*, double*) = COREAI_TARGETS(SinCosOfOne);

void Check(Target target, double x) {
  double sin, cos;
  kSinCos[static_cast<std::size_t>(target)](x, &sin, &cos);
  ASSERT_NEAR(sin, std::sin(x), 3e-16) << TargetName(target) << ' ' << x;
  ASSERT_NEAR(cos, std::cos(x), 3e-16) << TargetName(target) << ' ' << x;
  // Near a zero the relative error counts.
  ASSERT_NEAR(sin, std::sin(x), 4e-16 * std::fabs(std::sin(x)) + 1e-25) << x;
  ASSERT_NEAR(cos, std::cos(x), 4e-16 * std::fabs(std::cos(x)) + 1e-25) << x;
}

TEST(SinCos, EveryQuarterAndSign) {
  for (const Target target : SupportedTargets()) {
    for (double x = -40; x <= 40; x += 0.0013) Check(target, x);
  }
}

TEST(SinCos, LargeArguments) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<double> draw(-kMaxSinCosArgument, kMaxSinCosArgument);
  for (const Target target : SupportedTargets()) {
    for (int i = 0; i < 20000; ++i) Check(target, static_cast<float>(draw(generator)));
    for (int i = 0; i < 20000; ++i) Check(target, i * 1677 * 1.57079632679489661923);
    Check(target, kMaxSinCosArgument);
    Check(target, -kMaxSinCosArgument);
  }
}

TEST(SinCos, Edges) {
  for (const Target target : SupportedTargets()) {
    const auto both = kSinCos[static_cast<std::size_t>(target)];
    double sin, cos;
    both(0.0, &sin, &cos);
    EXPECT_EQ(sin, 0.0);
    EXPECT_EQ(cos, 1.0);
    both(NAN, &sin, &cos);
    EXPECT_TRUE(std::isnan(sin) && std::isnan(cos));
    both(INFINITY, &sin, &cos);
    EXPECT_TRUE(std::isnan(sin) && std::isnan(cos));
    both(1e-310, &sin, &cos);
    EXPECT_EQ(sin, 1e-310);
  }
}

}  // namespace
}  // namespace coreai::testing
#endif
