#include "kernels/few_bits/pack.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/few_bits/few_bits.h"

namespace coreai::testing {
namespace {

// Code k of a column of a strip.
unsigned PackedCode(const std::vector<std::uint8_t>& packed, std::size_t c, std::size_t k,
                    std::size_t stored) {
  const std::size_t unit = UnitCodes(stored), j = k % unit;
  const auto byte = [&](std::size_t word) -> unsigned {
    return packed[((k / unit * (unit * stored / 32) + word) * kFewBitsStrip + c) * 4 + j % 4];
  };
  if (stored != 5 && stored != 6) return byte(0) >> (j / 4 * stored) & ((1u << stored) - 1);
  const std::size_t above = stored - 4;
  const unsigned low = byte(j / 8) >> (j % 8 / 4 * 4) & 15u;
  return low | (byte(unit / 8) >> (j / 4 * above) & ((1u << above) - 1)) << 4;
}

TEST(PackCodes, CodesOfAWordAreThoseOfOneColumn) {
  for (const std::size_t bits : {8u, 6u, 5u, 4u, 3u, 2u}) {
    for (const std::size_t group : {24u, 64u}) {
      const std::size_t stored = StoredBits(bits, group), unit = UnitCodes(stored), columns = 18;
      EXPECT_EQ(stored, bits == 3 ? 4u : bits < 5 || group == 64 ? bits : 8u);
      const std::size_t padded = (group + unit - 1) / unit * unit;
      std::vector<std::uint8_t> codes(columns * group * bits / 8);
      for (std::size_t i = 0; i < codes.size(); ++i) {
        codes[i] = static_cast<std::uint8_t>(37 * i + 5);
      }
      std::vector<std::uint8_t> packed(kFewBitsStrip * padded * stored / 8, 0xEE);
      PackCodes(codes.data(), columns, 1, group, bits, padded, packed.data());
      for (std::size_t c = 0; c < kFewBitsStrip; ++c) {
        for (std::size_t k = 0; k < padded; ++k) {
          const bool there = c < columns && k < group;
          const std::size_t row = c * group * bits / 8;
          EXPECT_EQ(PackedCode(packed, c, k, stored),
                    there ? CodeAt(codes.data() + row, k, bits) : 0u)
              << bits << ' ' << c << ' ' << k;
        }
      }
    }
  }
}

}  // namespace
}  // namespace coreai::testing
