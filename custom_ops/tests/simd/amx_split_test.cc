#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/simd/amx_split_test.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "simd/amx_split-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

inline void Split(const std::uint32_t* tile, std::uint32_t* high, std::uint32_t* low) {
  SplitAmxTile(tile, high, low);
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <array>

#include "simd/dispatch.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

using Tile = std::array<std::uint16_t, 512>;
using SplitKernel = void (*)(const std::uint32_t*, std::uint32_t*, std::uint32_t*);
constexpr SplitKernel kSplit[] = COREAI_TARGETS(Split);

TEST(AmxSplit, EveryNumberIsTheSumOfItsParts) {
  for (const Target target : SupportedTargets()) {
    for (std::uint32_t first = 0; first < 65536; first += 512) {
      alignas(64) Tile tile, high, low;
      for (std::uint32_t i = 0; i < 512; ++i) tile[i] = static_cast<std::uint16_t>(first + i);
      kSplit[static_cast<std::size_t>(target)](reinterpret_cast<std::uint32_t*>(tile.data()),
                                               reinterpret_cast<std::uint32_t*>(high.data()),
                                               reinterpret_cast<std::uint32_t*>(low.data()));
      for (std::size_t i = 0; i < 512; ++i) {
        const double x = FromBits16(tile[i], DType::kFloat16);
        const double part = FromBits16(high[i], DType::kBFloat16);
        const double rest = FromBits16(low[i], DType::kBFloat16);
        if (!std::isfinite(x)) {
          // What the caller finds.
          EXPECT_FALSE(std::isfinite(part)) << tile[i];
          EXPECT_TRUE(std::isnan(rest)) << tile[i];
          continue;
        }
        EXPECT_EQ(part + rest, x) << TargetName(target) << ' ' << tile[i];
        // None is subnormal, which tile instructions would take as zero. Signs agree.
        for (const double y : {part, rest}) EXPECT_TRUE(y == 0 || std::fabs(y) >= 0x1p-24);
        EXPECT_GE(part * rest, 0) << tile[i];
      }
    }
  }
}

}  // namespace
}  // namespace coreai::testing
#endif
