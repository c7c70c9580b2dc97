// Products of parts of rows with the model of tile registers, on every target.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/few_bits/tiled_parts_test.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/few_bits/tiled_parts-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

inline FewBitsPartsKernel PartsInModel() {
#if HWY_TARGET == HWY_SCALAR
  return nullptr;
#else
  return FewBitsPartsInTiles<ModelTiles>;
#endif
}

inline FewBitsSplitKernel SplitForModel() {
#if HWY_TARGET == HWY_SCALAR
  return nullptr;
#else
  return SplitIntoParts;
#endif
}

inline RoundPairsKernel RoundForModel() {
#if HWY_TARGET == HWY_SCALAR
  return nullptr;
#else
  return RoundPairs;
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/few_bits/few_bits_case.h"
#include "simd/dispatch.h"

namespace coreai::testing {
namespace {

FewBitsPartsKernel PartsOf(Target target) { return COREAI_FOR(target, PartsInModel)(); }

FewBitsSplitKernel SplitOf(Target target) { return COREAI_FOR(target, SplitForModel)(); }

TEST(FewBitsPartsTiles, AgreeWithTheReferenceInTheModel) {
  for (const Target target : SupportedTargets()) {
    if (PartsOf(target) == nullptr) continue;
    ForEachPartsCase([&](const Product& p, DType type) {
      if (p.rows < 64) CheckPartsKernels(p, type, target, SplitOf(target), PartsOf(target));
    });
  }
}

TEST(FewBitsPartsTiles, RoundedPairsHaveTheBitsOfRoundedBytes) {
  for (const Target target : SupportedTargets()) {
    const RoundPairsKernel round = COREAI_FOR(target, RoundForModel)();
    if (round == nullptr) continue;
    for (const std::size_t bits : {8u, 6u, 5u, 4u, 2u}) {
      for (const std::size_t group : {8u, 16u, 24u, 32u}) {
        for (const std::size_t rows : {16u, 29u, 34u}) {
          Product p = {bits, group, 6, 70, rows, DType::kFloat16, rows % 2 == 0};
          p.minimums = rows == 29;
          CheckRoundedPairs(p, target, round, PartsOf(target));
        }
      }
    }
  }
}

// Element k of the tile of a part of row 0.
float PartAt(const std::vector<std::uint16_t>& tiles, std::size_t part, std::size_t k) {
  constexpr std::size_t kPlaces[] = {0, 2, 1, 3};  // pairs are (0, 2), (1, 3)
  const std::size_t tile = kFewBitsTileRows * kFewBitsPairDepth;
  const std::uint32_t word = std::uint32_t{tiles[part * tile + k / 4 * 4 + kPlaces[k % 4]]} << 16;
  float value;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

TEST(FewBitsPartsTiles, ThreePartsAreExact) {
  constexpr float kMost = std::numeric_limits<float>::max();
  std::vector<float> x = {0,      -0.0f,    1,         1.0f / 3, -1e-20f,     kMost,
                          -kMost, INFINITY, -INFINITY, NAN,      0x1.FEp127f, 0x1.FF0002p127f};
  const std::uint32_t signaling = 0x7F800001;  // all bits of its payload are in the lower half
  x.resize(13);
  std::memcpy(&x[12], &signaling, sizeof(signaling));
  FewBitsWeight w = {};
  w.groups = 1;
  w.group = x.size();
  for (const Target target : SupportedTargets()) {
    if (SplitOf(target) == nullptr) continue;
    SCOPED_TRACE(TargetName(target));
    std::vector<std::uint16_t> tiles(PartsBytes(w, 3) / 2, 1);
    SplitOf(target)(w, x.data(), 1, 3, tiles.data());
    for (std::size_t k = 0; k < kFewBitsPairDepth; ++k) {
      const float want = k < x.size() ? x[k] : 0.0f;
      const float parts[] = {PartAt(tiles, 0, k), PartAt(tiles, 1, k), PartAt(tiles, 2, k)};
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(parts[0])) << k;
        continue;
      }
      EXPECT_EQ(double{parts[0]} + double{parts[1]} + double{parts[2]}, double{want}) << k;
    }
    for (std::size_t i = kFewBitsPairDepth; i < tiles.size() / 3; ++i) EXPECT_EQ(tiles[i], 0) << i;
  }
}

}  // namespace
}  // namespace coreai::testing
#endif
