#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/simd/erfc_test.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "simd/erfc-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

template <typename W>
inline W ErfcOfOne(W z) {
  const hn::ScalableTag<W> d;
  return hn::GetLane(ErfcNonNegative(d, hn::Set(d, z)));
}
inline float ErfcFloat(float z) { return ErfcOfOne(z); }
inline double ErfcDouble(double z) { return ErfcOfOne(z); }

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

#include "simd/dispatch.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

constexpr float (*kErfcFloat[])(float) = COREAI_TARGETS(ErfcFloat);
constexpr double (*kErfcDouble[])(double) = COREAI_TARGETS(ErfcDouble);

TEST(Erfc, WithinThreePlacesOfOne) {
  for (const Target target : SupportedTargets()) {
    const auto erfc32 = kErfcFloat[static_cast<std::size_t>(target)];
    const auto erfc64 = kErfcDouble[static_cast<std::size_t>(target)];
    for (double z = 0; z < 12; z += 0.00037) {
      const auto f = static_cast<float>(z);
      const double want = std::erfc(static_cast<double>(f));
      ASSERT_NEAR(static_cast<double>(erfc32(f)), want, 3.6e-7) << TargetName(target) << ' ' << f;
      ASSERT_NEAR(erfc64(z), std::erfc(z), 6.7e-16) << TargetName(target) << ' ' << z;
    }
  }
}

TEST(Erfc, Edges) {
  for (const Target target : SupportedTargets()) {
    const auto erfc32 = kErfcFloat[static_cast<std::size_t>(target)];
    const auto erfc64 = kErfcDouble[static_cast<std::size_t>(target)];
    EXPECT_EQ(erfc32(INFINITY), 0.0f);
    EXPECT_EQ(erfc64(INFINITY), 0.0);
    EXPECT_EQ(erfc32(1e30f), 0.0f);
    EXPECT_TRUE(std::isnan(erfc32(NAN)));
    EXPECT_TRUE(std::isnan(erfc64(NAN)));
  }
}

}  // namespace
}  // namespace coreai::testing
#endif
