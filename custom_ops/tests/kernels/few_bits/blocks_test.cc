#include "kernels/few_bits/blocks.h"

#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/few_bits/pack.h"

namespace coreai::testing {
namespace {

constexpr std::size_t kBytes = 11, kBits = 3, kRows = 130, kGroups = 16;

// A layout whose numbers are rows 0 to 127 or factors from 0 to 15.
struct Example {
  std::size_t width;
  std::vector<std::uint8_t> table, block;
  std::vector<std::int32_t> layout;

  explicit Example(std::size_t codes_of_row) : width(codes_of_row) {
    std::mt19937 random(7);
    for (std::size_t i = 0; i < kRows * width; ++i) {
      table.push_back(static_cast<std::uint8_t>(random() % (1u << kBits)));
    }
    for (std::size_t i = 0; i < kBytes; ++i) block.push_back(static_cast<std::uint8_t>(random()));
    for (std::size_t i = 0; i < kGroups + 2 * (kBlockValues / width); ++i) {
      const auto place = [&](unsigned bits) {
        return static_cast<std::int32_t>(random() % (8 * kBytes - bits + 1));
      };
      const bool is_factor = i < kGroups;
      const std::int32_t bits = is_factor ? 3 : 5;
      for (const std::int32_t x : {is_factor ? 1 : 2, place(5), bits, 1, place(2), 2, 32}) {
        layout.push_back(x);
      }
      if (is_factor) layout.back() = -4;
    }
  }

  BlockCodes Codes() const { return {table.data(), layout.data(), kRows, width, 2, kGroups}; }

  // Bit by bit.
  std::int64_t Number(std::size_t index) const {
    const std::int32_t* const of = layout.data() + index * 7;
    std::int64_t number = of[0];
    for (const std::int32_t* f = of + 1; f < of + 7; f += 3) {
      for (std::int32_t i = 0; i < f[1]; ++i) {
        const std::size_t bit = static_cast<std::size_t>(f[0] + i);
        number += static_cast<std::int64_t>(block[bit / 8] >> bit % 8 & 1) * (1 << i) * f[2];
      }
    }
    return number;
  }
};

TEST(BlockCodes, CodesAreThoseOfTheRowsThatNumbersSelect) {
  for (const std::size_t width : {1u, 4u, 8u, 256u}) {
    const Example example(width);
    const BlockCodes codes = example.Codes();
    ASSERT_EQ(codes.Fault(kBytes, kBits), "");
    const std::uint8_t* const block = example.block.data();
    for (std::size_t i = 0; i < codes.numbers(); ++i) {
      ASSERT_EQ(codes.Number(block, i), example.Number(i)) << width << ' ' << i;
    }
    for (const std::size_t bits : {8u, 4u}) {
      std::vector<std::uint8_t> stream(kBlockValues * bits / 8, 0xEE);
      codes.Unpack(block, bits, stream.data());
      for (std::size_t k = 0; k < kBlockValues; ++k) {
        const auto row = [&](std::size_t at) {
          return example.table[static_cast<std::size_t>(example.Number(at)) * width + k % width];
        };
        const std::size_t first = kGroups + k / width;
        const unsigned expected = row(first) | row(first + kBlockValues / width);
        EXPECT_EQ(CodeAt(stream.data(), k, bits), expected) << width << ' ' << k;
        EXPECT_EQ(codes.Code(block, k), expected) << width << ' ' << k;
      }
    }
  }
}

TEST(BlockCodes, EveryNumberOfALayoutIsChecked) {
  struct Change {
    std::size_t column;
    std::int32_t value;
    const char* message;
  };
  constexpr std::int32_t kLargest = INT32_MAX, kSmallest = INT32_MIN;
  const Change changes[] = {
      {0, -1, "layout has numbers from -1 to"},
      {0, 3, "layout has numbers from 3 to 130, expected 0 to 129"},
      {0, kLargest, "layout has numbers from 2147483647"},
      {1, -1, "layout has a field of 5 bits at -1 of 88"},
      {1, 84, "layout has a field of 5 bits at 84 of 88"},
      {1, kLargest, "layout has a field of 5 bits at 2147483647"},
      {2, 0, "layout has a field of 0 bits"},
      {2, 10, "layout has a field of 10 bits"},
      {2, kSmallest, "layout has a field of -2147483648 bits"},
      {3, kSmallest, "layout has numbers from -66571993086"},
      {6, kLargest, "layout has numbers from 2 to 6442450974"},
  };
  for (const Change& change : changes) {
    for (const std::size_t number : {kGroups, kGroups + 2 * (kBlockValues / 4) - 1}) {
      Example example(4);
      example.layout[number * 7 + change.column] = change.value;
      EXPECT_EQ(example.Codes().Fault(kBytes, kBits).rfind(change.message, 0), 0u)
          << example.Codes().Fault(kBytes, kBits) << ", expected " << change.message;
    }
  }
  Example factors(4);
  factors.layout[3] = 1 << 24;
  EXPECT_NE(factors.Codes().Fault(kBytes, kBits), "");
  EXPECT_NE(Example(4).Codes().Fault(kBytes - 1, kBits), "");
  Example codes(4);
  codes.table.back() = 1 << kBits;
  EXPECT_EQ(codes.Codes().Fault(kBytes, kBits), "table has the code 8");
  EXPECT_EQ(codes.Codes().Fault(kBytes, 8), "");
}

}  // namespace
}  // namespace coreai::testing
