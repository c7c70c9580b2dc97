#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/simd/exp_test.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "simd/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

template <typename W>
inline W ExpOfOne(W x) {
  const hn::ScalableTag<W> d;
  return hn::GetLane(ExpNonPositive(d, hn::Set(d, x)));
}
inline float ExpFloat(float x) { return ExpOfOne(x); }
inline double ExpDouble(double x) { return ExpOfOne(x); }
inline float Exp2Float(float x) {
  const hn::ScalableTag<float> d;
  return hn::GetLane(Exp2NonPositive(d, hn::Set(d, x)));
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

#include "simd/dispatch.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

constexpr float (*kExpFloat[])(float) = COREAI_TARGETS(ExpFloat);
constexpr double (*kExpDouble[])(double) = COREAI_TARGETS(ExpDouble);
constexpr float (*kExp2Float[])(float) = COREAI_TARGETS(Exp2Float);

TEST(Exp, WithinTwoUlp) {
  for (const Target target : SupportedTargets()) {
    const auto exp32 = kExpFloat[static_cast<std::size_t>(target)];
    const auto exp64 = kExpDouble[static_cast<std::size_t>(target)];
    for (double x = -86.99; x <= 0; x += 0.000173) {
      const auto f = static_cast<float>(x);
      const double want = std::exp(static_cast<double>(f));
      ASSERT_NEAR(exp32(f), want, 2 * 1.2e-7 * want) << TargetName(target) << ' ' << f;
    }
    for (double x = -707.9; x <= 0; x += 0.00197) {
      ASSERT_NEAR(exp64(x), std::exp(x), 2 * 2.3e-16 * std::exp(x))
          << TargetName(target) << ' ' << x;
    }
  }
}

TEST(Exp, EdgesAreExact) {
  for (const Target target : SupportedTargets()) {
    const auto exp32 = kExpFloat[static_cast<std::size_t>(target)];
    const auto exp64 = kExpDouble[static_cast<std::size_t>(target)];
    EXPECT_EQ(exp32(0.0f), 1.0f);
    EXPECT_EQ(exp64(0.0), 1.0);
    EXPECT_EQ(exp32(-INFINITY), 0.0f);
    EXPECT_EQ(exp64(-INFINITY), 0.0);
    EXPECT_EQ(exp32(-3.4e38f), 0.0f);
    EXPECT_EQ(exp64(-1.7e308), 0.0);
    EXPECT_TRUE(std::isnan(exp32(NAN)));
    EXPECT_TRUE(std::isnan(exp64(NAN)));
  }
}

TEST(Exp2, WithinThreeMillionths) {
  for (const Target target : SupportedTargets()) {
    const auto exp2 = kExp2Float[static_cast<std::size_t>(target)];
    for (double x = -125.99; x <= 8; x += 0.000173) {
      const auto f = static_cast<float>(x);
      const double want = std::exp2(static_cast<double>(f));
      ASSERT_NEAR(exp2(f), want, 3e-6 * want) << TargetName(target) << ' ' << f;
    }
  }
}

TEST(Exp2, EdgesAreExact) {
  for (const Target target : SupportedTargets()) {
    const auto exp2 = kExp2Float[static_cast<std::size_t>(target)];
    for (int n = -126; n <= 8; ++n) {
      EXPECT_EQ(exp2(static_cast<float>(n)), std::ldexp(1.0f, n)) << TargetName(target);
    }
    EXPECT_EQ(exp2(-INFINITY), 0.0f) << TargetName(target);
    EXPECT_EQ(exp2(-3.4e38f), 0.0f) << TargetName(target);
    EXPECT_TRUE(std::isnan(exp2(NAN))) << TargetName(target);
  }
}

}  // namespace
}  // namespace coreai::testing
#endif
