#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/few_bits/few_bits.h"
#include "kernels/few_bits/pack.h"
#include "reference/linear_nbits.h"
#include "tensor.h"

namespace coreai::testing {

struct Product {
  std::size_t bits = 4;
  std::size_t group = 32;
  std::size_t groups = 2;
  std::size_t columns = 70;
  std::size_t rows = 1;
  DType scale = DType::kFloat32;
  bool zeros = false;
  bool palette = false;
  unsigned lift = 0;  // added to zero points
  bool minimums = false;
  bool levels = false;  // scales and minimums of two levels, in blocks of two groups
};

inline std::string Text(const Product& p) {
  return std::to_string(p.bits) + " bits, " + std::to_string(p.groups) + " groups of " +
         std::to_string(p.group) + ", " + std::to_string(p.rows) + " rows, " +
         std::to_string(p.columns) + " columns, " + Name(p.scale) +
         (p.minimums ? ", minimums" : "") + (p.levels ? ", two levels" : "");
}

// Scales or minimums of [columns, groups], for the reference and packed.
struct Levels {
  std::vector<double> values;
  Tensor packed;
  std::vector<std::int8_t> factors;  // packed

  Levels(const Product& p, DType type, unsigned seed, double deviation)
      : packed(DType::kFloat32, 0) {
    const std::size_t block = p.levels ? 2 : 1, strips = (p.columns - 1) / kFewBitsStrip + 1;
    const auto place = [](std::size_t c, std::size_t g, std::size_t groups) {
      return (c / kFewBitsStrip * groups + g) * kFewBitsStrip + c % kFewBitsStrip;
    };
    const std::size_t count = strips * kFewBitsStrip * p.groups;
    const Tensor levels(type, Normal(p.columns * p.groups / block, seed, 0, deviation));
    packed = Tensor(type, std::vector<double>(count / block, 0.0));
    factors.resize(count);
    for (std::size_t c = 0; c < p.columns; ++c) {
      for (std::size_t g = 0; g < p.groups; ++g) {
        const double level = levels[(c * p.groups + g) / block];
        const auto factor = static_cast<std::int8_t>(p.levels ? (c * 37 + g * 11) % 256 - 128 : 1);
        packed.Set(place(c, g / block, p.groups / block), level);
        factors[place(c, g, p.groups)] = factor;
        values.push_back(level * factor);
      }
    }
  }
};

// A random weight, for the reference and packed.
struct Weight {
  FewBits plain;
  Tensor codes, zeros, palette;
  Levels scales, minimums;
  FewBitsWeight packed;

  explicit Weight(const Product& p)
      : codes(DType::kFloat32, 0),
        zeros(DType::kFloat32, 0),
        palette(DType::kFloat32, 0),
        scales(p, p.scale, 1,
               1 / std::ldexp(std::sqrt(p.groups * p.group),
                              static_cast<int>(p.bits) + (p.levels ? 6 : 0))),
        minimums(p, DType::kFloat32, 4, p.levels ? 1.0 / 64 : 1) {
    plain.bits = p.bits;
    plain.group = p.group;
    plain.groups = p.groups;
    plain.columns = p.columns;
    std::mt19937 random(3);
    plain.stream.resize(p.columns * p.groups * p.group * p.bits / 8);
    for (std::uint8_t& byte : plain.stream) byte = static_cast<std::uint8_t>(random());
    const std::size_t count = p.columns * p.groups;
    plain.scales = scales.values;
    if (p.zeros) {
      for (std::size_t i = 0; i < count; ++i) {
        plain.zeros.push_back(static_cast<double>(random() % (1u << p.bits) + p.lift));
      }
    }
    if (p.minimums) plain.minimums = minimums.values;
    if (p.palette) {
      plain.palette =
          Tensor(DType::kBFloat16, Normal(std::size_t{1} << p.bits, 2, 0, 1 << p.bits)).Values();
    }
    Pack(p);
  }

 private:
  void Pack(const Product& p) {
    const std::size_t stored = StoredBits(p.bits, p.group), unit = UnitCodes(stored);
    const std::size_t padded = (p.group + unit - 1) / unit * unit;
    const std::size_t all = (p.columns + kFewBitsStrip - 1) / kFewBitsStrip * kFewBitsStrip;
    codes = Tensor(DType::kFloat32, all * p.groups * padded * stored / 32);
    zeros = Tensor(DType::kFloat32, std::vector<double>(all * p.groups, 0.0));
    for (std::size_t c = 0; c < p.columns; ++c) {
      for (std::size_t g = 0; g < p.groups; ++g) {
        const std::size_t to =
            (c / kFewBitsStrip * p.groups + g) * kFewBitsStrip + c % kFewBitsStrip;
        if (p.zeros) zeros.Set(to, plain.zeros[c * p.groups + g]);
      }
    }
    std::vector<double> values = plain.palette;
    values.resize(256, 0.0);
    palette = Tensor(DType::kFloat32, values);
    const double zero_of_all = p.minimums ? 0 : 1 << (p.bits - 1);
    double least = 0, most = 0;
    if (plain.zeros.empty()) least = -zero_of_all, most = (1 << p.bits) - 1 - zero_of_all;
    for (const double zero : plain.zeros) {
      least = std::min(least, -zero);
      most = std::max(most, (1 << p.bits) - 1 - zero);
    }
    auto* const bytes = static_cast<std::uint8_t*>(codes.data());
    PackCodes(plain.stream.data(), p.columns, p.groups, p.group, p.bits, padded, bytes);
    packed = {bytes,
              scales.packed.data(),
              p.zeros ? static_cast<const float*>(zeros.data()) : nullptr,
              p.palette ? static_cast<const float*>(palette.data()) : nullptr,
              p.scale,
              static_cast<float>(zero_of_all),
              stored,
              p.groups,
              p.group,
              padded,
              static_cast<float>(least),
              static_cast<float>(most),
              true,
              p.minimums ? minimums.packed.data() : nullptr,
              DType::kFloat32,
              p.levels ? scales.factors.data() : nullptr,
              p.levels && p.minimums ? minimums.factors.data() : nullptr,
              p.levels ? std::size_t{1} : std::size_t{0}};
  }
};

inline std::vector<double> Padded(const std::vector<double>& x, const FewBitsWeight& w) {
  std::vector<double> padded;
  for (std::size_t i = 0; i < x.size(); i += w.group) {
    padded.insert(padded.end(), x.begin() + static_cast<std::ptrdiff_t>(i),
                  x.begin() + static_cast<std::ptrdiff_t>(i + w.group));
    padded.resize(padded.size() + w.padded - w.group, 0.0);
  }
  return padded;
}

// The columns that there are of strips [strip, row, column].
inline Tensor Joined(const std::vector<Tensor>& strips, const Product& p) {
  Tensor joined(DType::kFloat32, p.rows * p.columns);
  for (std::size_t r = 0; r < p.rows; ++r) {
    for (std::size_t c = 0; c < p.columns; ++c) {
      const Tensor& strip = strips[c / kFewBitsStrip];
      joined.Set(r * p.columns + c, strip[r * kFewBitsStrip + c % kFewBitsStrip]);
    }
  }
  return joined;
}

/// Subtracts the products of the minimums, if the weight has them, from those of a strip's columns.
inline void Subtract(const Weight& weight, Target target, const Tensor& group_sums,
                     std::size_t rows, std::size_t column, const Tensor& strip) {
  const FewBitsWeight& w = weight.packed;
  if (w.minimums == nullptr) return;
  FindFewBitsMinimums(target)(
      w, {static_cast<const float*>(group_sums.data()), static_cast<float*>(strip.data()),
          kFewBitsStrip, rows, column, std::min(kFewBitsStrip, weight.plain.columns - column)});
}

/// Rows that are rounded for a target, multiplied by each of `kernels` and compared.
inline void CheckRoundedKernels(const Product& p, Target target,
                                const std::vector<RoundedKernel>& kernels) {
  SCOPED_TRACE(std::string(TargetName(target)) + ", " + Text(p));
  const Weight weight(p);
  const FewBitsWeight& w = weight.packed;
  const Tensor x(DType::kFloat32, Normal(p.rows * p.groups * p.group, 5));
  const auto want = LinearNbitsReference(x.Values(), p.rows, weight.plain, true);
  const std::size_t depth = w.groups * w.padded;
  const Tensor left(DType::kFloat32, RoundedBytes(p.rows, depth) / 4 + 1);
  const Tensor steps(DType::kFloat32, p.rows * p.groups), sums(DType::kFloat32, steps.size());
  auto* const integers = static_cast<std::int8_t*>(left.data());
  for (std::size_t r = 0; r < p.rows; ++r) {
    FindRound(target)(static_cast<const float*>(x.data()) + r * p.groups * p.group, p.groups,
                      p.group, w.padded, integers + r * depth,
                      static_cast<float*>(steps.data()) + r, static_cast<float*>(sums.data()) + r,
                      p.rows);
  }
  Tensor group_sums(DType::kFloat32, p.rows * p.groups);
  for (std::size_t i = 0; i < group_sums.size(); ++i) {
    const std::size_t at = i % p.groups * p.rows + i / p.groups;
    group_sums.Set(i, steps[at] * sums[at]);
  }
  for (const RoundedKernel kernel : kernels) {
    std::vector<Tensor> strips;
    for (std::size_t column = 0; column < p.columns; column += kFewBitsStrip) {
      strips.emplace_back(DType::kFloat32, p.rows * kFewBitsStrip);
      kernel(w, {integers, static_cast<const float*>(steps.data()),
                 static_cast<const float*>(sums.data()), p.rows,
                 static_cast<float*>(strips.back().data()), p.rows, column});
      Subtract(weight, target, group_sums, p.rows, column, strips.back());
    }
    ExpectNear(Joined(strips, p), want, DType::kFloat32);
  }
}

/// Rounded rows as pairs, which have the bits of rounded rows as bytes.
inline void CheckRoundedPairs(const Product& p, Target target, RoundPairsKernel round,
                              FewBitsPartsKernel kernel) {
  SCOPED_TRACE(std::string(TargetName(target)) + ", " + Text(p));
  const Weight weight(p);
  const FewBitsWeight& w = weight.packed;
  const std::size_t depth = w.groups * w.padded, length = p.groups * p.group;
  const Tensor x(DType::kFloat32, Normal(p.rows * length, 5));
  const auto* rows = static_cast<const float*>(x.data());
  const Tensor left(DType::kFloat32, RoundedBytes(p.rows, depth) / 4 + 1);
  const Tensor steps(DType::kFloat32, p.rows * p.groups + 15), sums(DType::kFloat32, steps.size());
  const Tensor paired(DType::kFloat32, steps.size()), added(DType::kFloat32, steps.size());
  const auto floats = [](const Tensor& tensor) { return static_cast<float*>(tensor.data()); };
  auto* const integers = static_cast<std::int8_t*>(left.data());
  for (std::size_t r = 0; r < p.rows; ++r) {
    FindRound(target)(rows + r * length, p.groups, p.group, w.padded, integers + r * depth,
                      floats(steps) + r, floats(sums) + r, p.rows);
  }
  const std::size_t tiles = (p.rows + kFewBitsTileRows - 1) / kFewBitsTileRows;
  const std::size_t bytes = PartsBytes(w, 1);
  const Tensor pairs(DType::kFloat32, tiles * bytes / 4);
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    const std::size_t row = tile * kFewBitsTileRows;
    round(w, rows + row * length, std::min(kFewBitsTileRows, p.rows - row),
          static_cast<char*>(pairs.data()) + tile * bytes, floats(paired) + row,
          floats(added) + row, p.rows);
  }
  EXPECT_EQ(paired.Values(), steps.Values());
  if (p.minimums) {
    EXPECT_EQ(added.Values(), sums.Values());
  }
  std::vector<Tensor> want, got;
  for (std::size_t column = 0; column < p.columns; column += kFewBitsStrip) {
    for (std::vector<Tensor>* strips : {&want, &got}) {
      strips->emplace_back(DType::kFloat32, tiles * kFewBitsTileRows * kFewBitsStrip);
    }
    FindRounded(target)(
        w, {integers, floats(steps), floats(sums), p.rows, floats(want.back()), p.rows, column});
    kernel(w, {pairs.data(), 1, floats(got.back()), p.rows, column, floats(paired), p.rows});
  }
  EXPECT_EQ(Joined(got, p).Values(), Joined(want, p).Values());
}

/// Splits rows of a type, multiplies their parts and compares.
inline void CheckPartsKernels(const Product& p, DType type, Target target, FewBitsSplitKernel split,
                              FewBitsPartsKernel kernel) {
  SCOPED_TRACE(std::string(TargetName(target)) + ", " + Text(p) + ", rows of " + Name(type));
  const std::size_t parts = type == DType::kBFloat16 ? 1 : type == DType::kFloat16 ? 2 : 3;
  const Weight weight(p);
  const FewBitsWeight& w = weight.packed;
  const Tensor x(DType::kFloat32, Tensor(type, Normal(p.rows * p.groups * p.group, 5)).Values());
  const auto want = LinearNbitsReference(x.Values(), p.rows, weight.plain, false);
  const std::size_t tiles = (p.rows + kFewBitsTileRows - 1) / kFewBitsTileRows;
  const std::size_t bytes = PartsBytes(w, parts);
  const Tensor left(DType::kFloat32, tiles * bytes / 4);
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    const std::size_t row = tile * kFewBitsTileRows;
    split(w, static_cast<const float*>(x.data()) + row * p.groups * p.group,
          std::min(kFewBitsTileRows, p.rows - row), parts,
          static_cast<char*>(left.data()) + tile * bytes);
  }
  std::vector<Tensor> strips;
  for (std::size_t column = 0; column < p.columns; column += kFewBitsStrip) {
    strips.emplace_back(DType::kFloat32, tiles * kFewBitsTileRows * kFewBitsStrip);
    kernel(w, {left.data(), parts, static_cast<float*>(strips.back().data()), p.rows, column});
  }
  ExpectNear(Joined(strips, p), want, DType::kFloat32);
}

/// Calls `check(product, type of rows)` for every kind of weight.
template <class Check>
void ForEachPartsCase(const Check& check) {
  const DType types[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  for (const std::size_t bits : {8u, 6u, 5u, 4u, 3u, 2u}) {
    for (const std::size_t group : {16u, 24u, 32u, 40u, 64u, 160u}) {
      for (const std::size_t rows : {1u, 16u, 17u, 35u, 64u}) {
        const DType type = types[rows % 3];
        check({bits, group, 3, 20, rows, DType::kFloat16, rows % 2 == 0}, type);
      }
      check({bits, group, 2, 70, 33, DType::kFloat32, false, true}, types[group % 3]);
      const unsigned lift = bits == 8 ? 1 : 100;  // codes less zero points from -256 on
      check({bits, group, 1, 66, 18, DType::kBFloat16, true, false, lift}, types[group / 8 % 3]);
      Product levels = {bits, group, 4, 66, 17, DType::kFloat16};
      levels.levels = true;
      check(levels, types[group / 8 % 3]);
    }
  }
}

}  // namespace coreai::testing
