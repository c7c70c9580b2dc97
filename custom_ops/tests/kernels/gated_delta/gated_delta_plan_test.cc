#include "kernels/gated_delta/gated_delta_plan.h"

#include "gtest/gtest.h"

namespace coreai::testing {
namespace {

GatedDeltaProblem Sized(std::size_t length, std::size_t value_dim) {
  GatedDeltaProblem a = {};
  a.batch = 2;
  a.heads = 2;
  a.value_heads = 6;
  a.length = length;
  a.key_dim = 20;
  a.value_dim = value_dim;
  return a;
}

TEST(GatedDeltaPlan, AnItemIsAPartOfOneHeadsColumns) {
  EXPECT_EQ(GatedDeltaItems(Sized(1, 1)), 12u);
  EXPECT_EQ(GatedDeltaItems(Sized(1, kItemColumns)), 12u);
  EXPECT_EQ(GatedDeltaItems(Sized(1, kItemColumns + 1)), 24u);
  EXPECT_EQ(GatedDeltaItems(Sized(1, 0)), 0u);
}

TEST(GatedDeltaPlan, ScratchDoesNotGrowWithTheLength) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    EXPECT_EQ(GatedDeltaScratchBytes(Sized(2, 200), dtype),
              GatedDeltaScratchBytes(Sized(100000, 200), dtype));
    EXPECT_LT(GatedDeltaScratchBytes(Sized(1, 200), dtype),
              GatedDeltaScratchBytes(Sized(2, 200), dtype));
    EXPECT_EQ(GatedDeltaScratchBytes(Sized(2, 200), dtype),
              GatedDeltaScratchBytes(Sized(2, 2000), dtype));
  }
}

TEST(GatedDeltaPlan, ArraysAreAlignedAndApart) {
  const GatedDeltaProblem a = Sized(9, 7);
  const GatedDeltaScratch<float> sizes(a, nullptr);
  EXPECT_EQ(sizes.padded, 32u);
  alignas(64) static char memory[1 << 20];
  ASSERT_LE(sizes.bytes, sizeof(memory));
  const GatedDeltaScratch<float> s(a, memory);
  const auto at = [](const void* p) { return static_cast<const char*>(p) - memory; };
  EXPECT_EQ(at(s.state), 0);
  EXPECT_EQ(at(s.rows) % 64 + at(s.tokens) % 64 + at(s.couplings) % 64, 0);
  EXPECT_LT(at(s.state), at(s.rows));
  EXPECT_LE(at(s.rows), at(s.tokens));
  EXPECT_LT(at(s.tokens), at(s.couplings));
  EXPECT_LE(at(s.couplings + kSegmentTokens), static_cast<std::ptrdiff_t>(s.bytes));
}

}  // namespace
}  // namespace coreai::testing
