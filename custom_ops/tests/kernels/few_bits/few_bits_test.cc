#include "kernels/few_bits/few_bits.h"

#include <algorithm>
#include <string>

#include "kernels/few_bits/pack.h"
#include "kernels/gather_mm/gather_mm.h"
#include "reference/linear_nbits.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

struct Product {
  std::size_t bits = 4;
  std::size_t group = 32;
  std::size_t groups = 2;
  std::size_t columns = 70;
  std::size_t rows = 1;
  DType scale = DType::kFloat32;
  bool zeros = false;
  bool palette = false;
};

std::string Text(const Product& p) {
  return std::to_string(p.bits) + " bits, " + std::to_string(p.groups) + " groups of " +
         std::to_string(p.group) + ", " + std::to_string(p.rows) + " rows, " +
         std::to_string(p.columns) + " columns, " + Name(p.scale);
}

// A random weight, for the reference and packed.
struct Weight {
  FewBits plain;
  Tensor codes, scales, zeros, palette;
  FewBitsWeight packed;

  explicit Weight(const Product& p)
      : codes(DType::kFloat32, 0),
        scales(p.scale, 0),
        zeros(DType::kFloat32, 0),
        palette(DType::kFloat32, 0) {
    plain.bits = p.bits;
    plain.group = p.group;
    plain.groups = p.groups;
    plain.columns = p.columns;
    std::mt19937 random(3);
    plain.stream.resize(p.columns * p.groups * p.group * p.bits / 8);
    for (std::uint8_t& byte : plain.stream) byte = static_cast<std::uint8_t>(random());
    const double deviation =
        1 / std::ldexp(std::sqrt(p.groups * p.group), static_cast<int>(p.bits));
    const std::size_t count = p.columns * p.groups;
    plain.scales = Tensor(p.scale, Normal(count, 1, 0, deviation)).Values();
    if (p.zeros) {
      for (std::size_t i = 0; i < count; ++i) {
        plain.zeros.push_back(static_cast<double>(random() % (1u << p.bits)));
      }
    }
    if (p.palette) {
      plain.palette =
          Tensor(DType::kFloat32, Normal(std::size_t{1} << p.bits, 2, 0, 1 << p.bits)).Values();
    }
    Pack(p);
  }

 private:
  void Pack(const Product& p) {
    const std::size_t stored = StoredBits(p.bits), unit = 32 / stored;
    const std::size_t padded = (p.group + unit - 1) / unit * unit;
    const std::size_t all = (p.columns + kFewBitsStrip - 1) / kFewBitsStrip * kFewBitsStrip;
    codes = Tensor(DType::kFloat32, all * p.groups * padded * stored / 32);
    scales = Tensor(p.scale, std::vector<double>(all * p.groups, 0.0));
    zeros = Tensor(DType::kFloat32, std::vector<double>(all * p.groups, 0.0));
    for (std::size_t c = 0; c < p.columns; ++c) {
      for (std::size_t g = 0; g < p.groups; ++g) {
        const std::size_t to =
            (c / kFewBitsStrip * p.groups + g) * kFewBitsStrip + c % kFewBitsStrip;
        scales.Set(to, plain.scales[c * p.groups + g]);
        if (p.zeros) zeros.Set(to, plain.zeros[c * p.groups + g]);
      }
    }
    std::vector<double> values = plain.palette;
    values.resize(256, 0.0);
    palette = Tensor(DType::kFloat32, values);
    auto* const bytes = static_cast<std::uint8_t*>(codes.data());
    PackCodes(plain.stream.data(), p.columns, p.groups, p.group, p.bits, padded, bytes);
    packed = {bytes,
              scales.data(),
              p.zeros ? static_cast<const float*>(zeros.data()) : nullptr,
              p.palette ? static_cast<const float*>(palette.data()) : nullptr,
              p.scale,
              static_cast<float>(1u << (p.bits - 1)),
              stored,
              p.groups,
              p.group,
              padded};
  }
};

std::vector<double> Padded(const std::vector<double>& x, const FewBitsWeight& w) {
  std::vector<double> padded;
  for (std::size_t i = 0; i < x.size(); i += w.group) {
    padded.insert(padded.end(), x.begin() + static_cast<std::ptrdiff_t>(i),
                  x.begin() + static_cast<std::ptrdiff_t>(i + w.group));
    padded.resize(padded.size() + w.padded - w.group, 0.0);
  }
  return padded;
}

// The columns that there are of strips [strip, row, column].
Tensor Joined(const std::vector<Tensor>& strips, const Product& p) {
  Tensor joined(DType::kFloat32, p.rows * p.columns);
  for (std::size_t r = 0; r < p.rows; ++r) {
    for (std::size_t c = 0; c < p.columns; ++c) {
      const Tensor& strip = strips[c / kFewBitsStrip];
      joined.Set(r * p.columns + c, strip[r * kFewBitsStrip + c % kFewBitsStrip]);
    }
  }
  return joined;
}

void CheckFew(const Product& p) {
  const Weight weight(p);
  const Tensor x(DType::kFloat32, Normal(p.rows * p.groups * p.group, 5));
  const auto want = LinearNbitsReference(x.Values(), p.rows, weight.plain, false);
  const Tensor left(DType::kFloat32, Padded(x.Values(), weight.packed));
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(std::string(TargetName(target)) + ", " + Text(p));
    std::vector<Tensor> strips;
    for (std::size_t column = 0; column < p.columns; column += kFewBitsStrip) {
      strips.emplace_back(DType::kFloat32, p.rows * kFewBitsStrip);
      FindFewBits(target)(weight.packed,
                          {static_cast<const float*>(left.data()),
                           static_cast<float*>(strips.back().data()), p.rows, column});
    }
    ExpectNear(Joined(strips, p), want, DType::kFloat32);
  }
}

// Without VNNI, and with it where there is a version for it and the CPU has it.
std::vector<bool> VersionsOf(Target target) {
  const bool differs = FindRounded(target, true) != FindRounded(target, false);
  return differs && CpuHasVnni(target) ? std::vector<bool>{false, true} : std::vector<bool>{false};
}

void CheckRounded(const Product& p) {
  const Weight weight(p);
  const FewBitsWeight& w = weight.packed;
  const Tensor x(DType::kFloat32, Normal(p.rows * p.groups * p.group, 5));
  const auto want = LinearNbitsReference(x.Values(), p.rows, weight.plain, true);
  const std::size_t depth = w.groups * w.padded;
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(std::string(TargetName(target)) + ", " + Text(p));
    const Tensor left(DType::kFloat32, p.rows * depth / 4);
    const Tensor steps(DType::kFloat32, p.rows * p.groups), sums(DType::kFloat32, steps.size());
    auto* const integers = static_cast<std::int8_t*>(left.data());
    for (std::size_t r = 0; r < p.rows; ++r) {
      FindRound(target)(static_cast<const float*>(x.data()) + r * p.groups * p.group, p.groups,
                        p.group, w.padded, integers + r * depth,
                        static_cast<float*>(steps.data()) + r * p.groups,
                        static_cast<float*>(sums.data()) + r * p.groups);
    }
    for (const bool vnni : VersionsOf(target)) {
      std::vector<Tensor> strips;
      for (std::size_t column = 0; column < p.columns; column += kFewBitsStrip) {
        strips.emplace_back(DType::kFloat32, p.rows * kFewBitsStrip);
        FindRounded(target, vnni)(w, {integers, static_cast<const float*>(steps.data()),
                                      static_cast<const float*>(sums.data()),
                                      static_cast<float*>(strips.back().data()), p.rows, column});
      }
      ExpectNear(Joined(strips, p), want, DType::kFloat32);
    }
  }
}

void CheckMany(const Product& p) {
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
      FindFewBitsMany(target)(
          weight.packed,
          {static_cast<const float*>(left.data()), static_cast<float*>(output.data()) + column,
           p.columns, p.rows, column, std::min(kFewBitsPanel, p.columns - column)},
          scratch.data());
    }
    ExpectNear(output, want, DType::kFloat32);
  }
}

TEST(FewBits, EveryNumberOfBitsAndRows) {
  for (const std::size_t bits : {8u, 4u, 3u, 2u}) {
    for (std::size_t rows = 1; rows <= kFewBitsFewRows; ++rows) {
      for (const bool zeros : {false, true}) {
        CheckFew({bits, 16, 3, 70, rows, DType::kFloat32, zeros});
      }
      CheckFew({bits, 16, 3, 70, rows, DType::kFloat32, false, true});
    }
  }
}

TEST(FewBits, EveryGroupAndScale) {
  for (const DType scale : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const std::size_t bits : {8u, 4u, 3u, 2u}) {
      for (const std::size_t group : {8u, 24u, 40u, 128u}) {
        CheckFew({bits, group, 2, 65, 2, scale, true});
        CheckRounded({bits, group, 2, 65, 2, scale, true});
      }
    }
  }
  for (const std::size_t group : {1u, 2u, 3u, 5u, 7u}) {
    CheckFew({8, group, 5, 17, 1});
    CheckRounded({8, group, 5, 17, 1});
    CheckFew({4, 2 * group, 5, 17, 1});
    CheckRounded({4, 2 * group, 5, 17, 1});
  }
}

TEST(FewBits, EveryNumberOfColumns) {
  for (std::size_t columns = 1; columns <= 2 * kFewBitsStrip + 1; ++columns) {
    CheckFew({4, 8, 2, columns, 1});
    CheckRounded({4, 8, 2, columns, 1});
  }
}

TEST(FewBits, RoundedRowsOfEveryNumber) {
  for (const std::size_t bits : {8u, 4u, 3u, 2u}) {
    for (std::size_t rows = 1; rows <= 18; ++rows) {
      CheckRounded({bits, 16, 3, 20, rows, DType::kFloat16, rows % 2 == 0});
    }
  }
}

TEST(FewBits, ManyRowsOfEveryNumberOfColumns) {
  for (const std::size_t bits : {8u, 4u, 3u, 2u}) {
    for (std::size_t columns = 1; columns < 50; ++columns) {
      CheckMany({bits, 8, 1, columns, 9});
    }
  }
}

TEST(FewBits, ManyRowsOfEveryNumberAndGroup) {
  for (const std::size_t bits : {8u, 4u, 3u, 2u}) {
    for (const std::size_t group : {8u, 16u, 40u, 128u, 200u, 264u}) {
      CheckMany({bits, group, 2, 70, 13, DType::kFloat16, true});
      CheckMany({bits, group, 3, 70, 5, DType::kBFloat16, false, true});
    }
    for (std::size_t rows = kFewBitsFewRows + 1; rows < 34; ++rows) {
      CheckMany({bits, 16, 9, 49, rows, DType::kFloat32});
    }
  }
  CheckMany({4, 32, 5, 64, kGatherMmMaxRows});
}

TEST(FewBits, SumsOfTheLargestNumbersAreExact) {
  Product p = {8, 512, 1, 16, 3};
  Weight weight(p);
  std::fill(weight.plain.stream.begin(), weight.plain.stream.end(), std::uint8_t{255});
  std::fill(weight.plain.scales.begin(), weight.plain.scales.end(), 1.0);
  const std::vector<std::int8_t> left(3 * 512, 127);
  const std::vector<float> steps(3, 1.0f), sums(3, 127.0f * 512);
  std::vector<std::uint8_t> codes(kFewBitsStrip * 512 + 64);
  PackCodes(weight.plain.stream.data(), 16, 1, 512, 8, 512, codes.data());
  weight.packed.codes = codes.data();
  for (std::size_t c = 0; c < 16; ++c) weight.scales.Set(c, 1.0);
  for (const Target target : SupportedTargets()) {
    for (const bool vnni : VersionsOf(target)) {
      const Tensor output(DType::kFloat32, 3 * kFewBitsStrip);
      FindRounded(target, vnni)(weight.packed, {left.data(), steps.data(), sums.data(),
                                                static_cast<float*>(output.data()), 3, 0});
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
    FindRound(target)(x.data(), 5, 2, 4, left, steps, sums);
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
