#include "kernels/few_bits/few_bits.h"

#include <algorithm>
#include <string>

#include "kernels/few_bits/few_bits_case.h"
#include "kernels/few_bits/pack.h"
#include "kernels/gather_mm/gather_mm.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

void CheckSmallBatch(const Product& p) {
  const Weight weight(p);
  const Tensor x(DType::kFloat32, Normal(p.rows * p.groups * p.group, 5));
  const auto want = LinearNbitsReference(x.Values(), p.rows, weight.plain, false);
  const Tensor left(DType::kFloat32, Padded(x.Values(), weight.packed));
  Tensor group_sums(DType::kFloat32, std::vector<double>(p.rows * p.groups, 0.0));
  for (std::size_t i = 0; i < x.size(); ++i) {
    group_sums.Set(i / p.group, group_sums[i / p.group] + x[i]);
  }
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(std::string(TargetName(target)) + ", " + Text(p));
    std::vector<Tensor> strips;
    for (std::size_t column = 0; column < p.columns; column += kFewBitsStrip) {
      strips.emplace_back(DType::kFloat32, p.rows * kFewBitsStrip);
      FindFewBitsSmallBatch(target)(weight.packed,
                                    {static_cast<const float*>(left.data()),
                                     static_cast<float*>(strips.back().data()), p.rows, column});
      Subtract(weight, target, group_sums, p.rows, column, strips.back());
    }
    ExpectNear(Joined(strips, p), want, DType::kFloat32);
  }
}

// Without VNNI, and with it where there is a version for it and the CPU has it.
std::vector<RoundedKernel> VersionsOf(Target target) {
  std::vector<RoundedKernel> versions = {FindRounded(target, false)};
  if (CpuHasVnni(target)) versions.push_back(FindRounded(target, true));
  return versions;
}

void CheckRounded(const Product& p) {
  for (const Target target : SupportedTargets()) CheckRoundedKernels(p, target, VersionsOf(target));
}

void CheckLargeBatch(const Product& p) {
  const Weight weight(p);
  const std::size_t depth = p.groups * p.group;
  const Tensor x(DType::kFloat32, Normal(p.rows * depth, 5));
  const auto want = LinearNbitsReference(x.Values(), p.rows, weight.plain, false);
  std::vector<const void*> rows(p.rows);
  for (std::size_t r = 0; r < p.rows; ++r) {
    rows[r] = static_cast<const float*>(x.data()) + r * depth;
  }
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(std::string(TargetName(target)) + ", " + Text(p));
    const Tensor left(DType::kFloat32, p.rows * depth), output(DType::kFloat32, want.size());
    const Tensor scratch(DType::kFloat32, kFewBitsScratchBytes / 4);
    FindGatherMmPackLeft(target, DType::kFloat32)(rows.data(), p.rows, depth, left.data());
    for (std::size_t column = 0; column < p.columns; column += kFewBitsPanel) {
      FindFewBitsLargeBatch(target)(
          weight.packed,
          {static_cast<const float*>(left.data()), static_cast<float*>(output.data()) + column,
           p.columns, p.rows, column, std::min(kFewBitsPanel, p.columns - column)},
          scratch.data());
    }
    ExpectNear(output, want, DType::kFloat32);
  }
}

TEST(FewBits, EveryNumberOfBitsAndRows) {
  for (const std::size_t bits : {8u, 6u, 5u, 4u, 3u, 2u}) {
    for (std::size_t rows = 1; rows <= kFewBitsSmallBatch; ++rows) {
      for (const bool zeros : {false, true}) {
        CheckSmallBatch({bits, 16, 3, 70, rows, DType::kFloat32, zeros});
      }
      CheckSmallBatch({bits, 32, 3, 70, rows, DType::kFloat32, false, true});
    }
  }
}

TEST(FewBits, EveryGroupAndScale) {
  for (const DType scale : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const std::size_t bits : {8u, 6u, 5u, 4u, 3u, 2u}) {
      for (const std::size_t group : {8u, 24u, 32u, 40u, 128u}) {
        CheckSmallBatch({bits, group, 2, 65, 2, scale, true});
        CheckRounded({bits, group, 2, 65, 2, scale, true});
      }
    }
  }
  for (const std::size_t group : {1u, 2u, 3u, 5u, 7u}) {
    CheckSmallBatch({8, group, 5, 17, 1});
    CheckRounded({8, group, 5, 17, 1});
    CheckSmallBatch({4, 2 * group, 5, 17, 1});
    CheckRounded({4, 2 * group, 5, 17, 1});
  }
}

TEST(FewBits, EveryNumberOfColumns) {
  for (std::size_t columns = 1; columns <= 2 * kFewBitsStrip + 1; ++columns) {
    CheckSmallBatch({4, 8, 2, columns, 1});
    CheckRounded({4, 8, 2, columns, 1});
  }
}

TEST(FewBits, MinimumsOfEveryNumberOfColumnsAndRows) {
  Product p = {4, 16, 3, 70, 1, DType::kFloat16};
  p.minimums = true;
  for (p.columns = 1; p.columns <= 2 * kFewBitsStrip + 1; ++p.columns) {
    p.rows = 1 + p.columns % kFewBitsSmallBatch;
    CheckSmallBatch(p);
    CheckRounded(p);
  }
}

TEST(FewBits, ScalesOfTwoLevels) {
  for (const DType scale : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const std::size_t bits : {8u, 6u, 5u, 4u, 3u, 2u}) {
      for (const std::size_t rows : {1u, 2u, 4u, 9u, 19u}) {
        Product p = {bits, 16, 4, 70, rows, scale};
        p.levels = true;
        if (rows > kFewBitsSmallBatch) CheckLargeBatch(p);
        p.minimums = true;
        CheckRounded(p);
        if (rows <= kFewBitsSmallBatch) CheckSmallBatch(p);
      }
    }
  }
}

TEST(FewBits, RoundedRowsOfEveryNumber) {
  for (const std::size_t bits : {8u, 6u, 5u, 4u, 3u, 2u}) {
    for (std::size_t rows = 1; rows <= 18; ++rows) {
      CheckRounded({bits, 16, 3, 20, rows, DType::kFloat16, rows % 2 == 0});
      CheckRounded({bits, 32, 2, 20, rows, DType::kFloat32, rows % 2 == 1});
    }
  }
}

TEST(FewBits, RoundedRowsInTiles) {
  for (const std::size_t bits : {8u, 6u, 5u, 4u, 3u, 2u}) {
    for (const std::size_t rows : {16u, 29u, 35u, 48u}) {
      for (const std::size_t group : {8u, 16u, 32u, 40u, 64u, 96u, 128u, 136u}) {
        CheckRounded({bits, group, 5, 70, rows, DType::kFloat16, rows % 2 == 0});
      }
    }
  }
}

TEST(FewBits, PartsInTiles) {
  for (const Target target : SupportedTargets()) {
    const FewBitsSplitKernel split = FindFewBitsSplit(target);
    const FewBitsPartsKernel kernel = FindFewBitsParts(target);
    EXPECT_EQ(split == nullptr, kernel == nullptr);
    if (kernel == nullptr) continue;
    ForEachPartsCase(
        [&](const Product& p, DType type) { CheckPartsKernels(p, type, target, split, kernel); });
  }
}

TEST(FewBits, LargeBatchesOfEveryNumberOfColumns) {
  for (const std::size_t bits : {8u, 6u, 5u, 4u, 3u, 2u}) {
    for (std::size_t columns = 1; columns < 50; ++columns) {
      CheckLargeBatch({bits, 8, 1, columns, 9});
    }
  }
}

TEST(FewBits, LargeBatchesOfEveryNumberAndGroup) {
  for (const std::size_t bits : {8u, 6u, 5u, 4u, 3u, 2u}) {
    for (const std::size_t group : {8u, 16u, 32u, 40u, 128u, 160u, 200u, 264u}) {
      CheckLargeBatch({bits, group, 2, 70, 13, DType::kFloat16, true});
      CheckLargeBatch({bits, group, 3, 70, 5, DType::kBFloat16, false, true});
    }
    for (std::size_t rows = kFewBitsSmallBatch + 1; rows < 34; ++rows) {
      CheckLargeBatch({bits, 16, 9, 49, rows, DType::kFloat32});
    }
  }
  CheckLargeBatch({4, 32, 5, 64, kGatherMmMaxRows});
}

TEST(FewBits, SumsOfTheLargestNumbersAreExact) {
  Product p = {8, 512, 1, 16, 3};
  Weight weight(p);
  std::fill(weight.plain.stream.begin(), weight.plain.stream.end(), std::uint8_t{255});
  std::fill(weight.plain.scales.begin(), weight.plain.scales.end(), 1.0);
  const std::vector<std::int8_t> left(RoundedBytes(3, 512), 127);
  const std::vector<float> steps(3, 1.0f), sums(3, 127.0f * 512);
  std::vector<std::uint8_t> codes(kFewBitsStrip * 512 + 64);
  PackCodes(weight.plain.stream.data(), 16, 1, 512, 8, 512, codes.data());
  weight.packed.codes = codes.data();
  for (std::size_t c = 0; c < 16; ++c) weight.scales.packed.Set(c, 1.0);
  for (const Target target : SupportedTargets()) {
    for (const RoundedKernel kernel : VersionsOf(target)) {
      const Tensor output(DType::kFloat32, 3 * kFewBitsStrip);
      kernel(weight.packed,
             {left.data(), steps.data(), sums.data(), 3, static_cast<float*>(output.data()), 3, 0});
      for (std::size_t r = 0; r < 3; ++r) {
        EXPECT_EQ(output[r * kFewBitsStrip + 15], 127.0 * 127 * 512) << TargetName(target);
      }
    }
  }
}

TEST(Round, GroupsThatAreZeroTinyOrNotFinite) {
  const std::vector<float> x = {0, 0, 1e-38f, -1e-38f, NAN, 1, INFINITY, 1, -3, 1.5f};
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(TargetName(target));
    std::int8_t left[5 * 4];
    float steps[5], sums[5];
    FindRound(target)(x.data(), 5, 2, 4, left, steps, sums, 1);
    EXPECT_EQ(left[0], 0);
    EXPECT_EQ(left[4], 0);
    EXPECT_TRUE(std::isnan(steps[2]));
    EXPECT_TRUE(std::isnan(steps[3]));
    EXPECT_EQ(left[16], -127);
    EXPECT_EQ(left[17], 64);  // 63.5, to even
    EXPECT_EQ(left[18], 0);
    EXPECT_EQ(sums[4], -63.0f);
    EXPECT_EQ(steps[4], 3.0f / 127.0f);
  }
}

TEST(Finish, EveryNumberOfElements) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (std::size_t count = 0; count <= 33; ++count) {
      const Tensor row(DType::kFloat32, Normal(count, 1)), bias(DType::kFloat32, Normal(count, 2));
      std::vector<double> want;
      for (std::size_t i = 0; i < count; ++i) want.push_back(row[i] + bias[i]);
      for (const Target target : SupportedTargets()) {
        const Tensor output(dtype, count, 1);
        FindFinish(target)(static_cast<const float*>(row.data()),
                           static_cast<const float*>(bias.data()), count, dtype, output.data());
        ExpectNear(output, want, dtype);
      }
    }
  }
}

}  // namespace
}  // namespace coreai::testing
