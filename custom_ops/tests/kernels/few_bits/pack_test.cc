#include "kernels/few_bits/pack.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/few_bits/few_bits.h"

namespace coreai::testing {
namespace {

TEST(PackCodes, CodesOfAWordAreThoseOfOneColumn) {
  for (const std::size_t bits : {8u, 6u, 5u, 4u, 3u, 2u}) {
    const std::size_t stored = StoredBits(bits), unit = 32 / stored, group = 24, columns = 18;
    const std::size_t padded = (group + unit - 1) / unit * unit;
    std::vector<std::uint8_t> codes(columns * group * bits / 8);
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(37 * i + 5);
    std::vector<std::uint8_t> packed(kFewBitsStrip * padded * stored / 8, 0xEE);
    PackCodes(codes.data(), columns, 1, group, bits, padded, packed.data());
    for (std::size_t c = 0; c < kFewBitsStrip; ++c) {
      for (std::size_t k = 0; k < padded; ++k) {
        const std::size_t j = k % unit;
        const unsigned byte = packed[(k / unit * kFewBitsStrip + c) * 4 + j % 4];
        const unsigned got = byte >> (j / 4 * stored) & ((1u << stored) - 1);
        const bool there = c < columns && k < group;
        const std::size_t row = c * group * bits / 8;
        EXPECT_EQ(got, there ? CodeAt(codes.data() + row, k, bits) : 0u)
            << bits << ' ' << c << ' ' << k;
      }
    }
  }
}

}  // namespace
}  // namespace coreai::testing
