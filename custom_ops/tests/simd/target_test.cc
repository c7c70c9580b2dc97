#include "simd/target.h"

#include <cstdio>

#include "gtest/gtest.h"

namespace coreai {
namespace {

TEST(Target, ScalarIsAlwaysSupported) {
  EXPECT_TRUE(TargetIsSupported(Target::kScalar));
  EXPECT_TRUE(TargetIsSupported(BestTarget()));
}

TEST(Target, NothingWiderThanTheBestIsSupported) {
  for (std::size_t i = static_cast<std::size_t>(BestTarget()) + 1; i < kTargetCount; ++i) {
    EXPECT_FALSE(TargetIsSupported(static_cast<Target>(i)));
  }
}

// For whoever reads the log of a run: what it can say something about.
TEST(Target, ThoseOfThisMachineArePrinted) {
  std::size_t supported = 0;
  std::printf("targets of this machine:");
  for (std::size_t i = 0; i < kTargetCount; ++i) {
    if (!TargetIsSupported(static_cast<Target>(i))) continue;
    std::printf(" %s", TargetName(static_cast<Target>(i)));
    ++supported;
  }
  std::printf("\n");
  EXPECT_GE(supported, 1u);
}

TEST(Target, VnniIsThatOfASupportedTarget) {
  for (std::size_t i = 0; i < kTargetCount; ++i) {
    const auto target = static_cast<Target>(i);
    EXPECT_TRUE(!CpuHasVnni(target) || TargetIsSupported(target));
  }
  EXPECT_FALSE(CpuHasVnni(Target::kScalar));
  // The target requires it.
  EXPECT_EQ(CpuHasVnni(Target::kAvx512Bf16), TargetIsSupported(Target::kAvx512Bf16));
}

TEST(Target, NamesAreFoundAndOthersAreNot) {
  for (std::size_t i = 0; i < kTargetCount; ++i) {
    Target found = Target::kScalar;
    ASSERT_TRUE(FindTarget(TargetName(static_cast<Target>(i)), &found));
    EXPECT_EQ(found, static_cast<Target>(i));
  }
  Target untouched = Target::kNeon;
  EXPECT_FALSE(FindTarget("avx1024", &untouched));
  EXPECT_FALSE(FindTarget("", &untouched));
  EXPECT_EQ(untouched, Target::kNeon);
}

}  // namespace
}  // namespace coreai
