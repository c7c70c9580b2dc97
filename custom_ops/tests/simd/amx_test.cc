// Products of tiles: the model against double precision and, where there is AMX, the instructions
// against the model, bit by bit.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/simd/amx_test.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "simd/amx-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// sums = sums + 2 * a * b; kind 0: pairs of bfloat16, 1: unsigned * signed, 2: signed * unsigned,
/// 3: signed * signed.
/// Rows of `a` are `stride` bytes apart. Every register is used.
template <class Tiles>
void Multiply(int kind, const void* a, size_t stride, const void* b, void* sums) {
  Tiles tiles;
  tiles.template Load<0>(sums, kAmxRowBytes);
  tiles.template Zero<1>();
  tiles.template Load<6>(a, stride);
  tiles.template Load<7>(b, kAmxRowBytes);
  tiles.template Store<6>(sums, kAmxRowBytes);
  tiles.template Load<5>(sums, kAmxRowBytes);
  if (kind == 0) {
    tiles.template AddPairs<0, 6, 7>();
    tiles.template AddPairs<0, 5, 7>();
  } else if (kind == 1) {
    tiles.template AddUnsignedSigned<0, 6, 7>();
    tiles.template AddUnsignedSigned<0, 5, 7>();
  } else if (kind == 2) {
    tiles.template AddSignedUnsigned<0, 6, 7>();
    tiles.template AddSignedUnsigned<0, 5, 7>();
  } else {
    tiles.template AddSigned<0, 6, 7>();
    tiles.template AddSigned<0, 5, 7>();
  }
  tiles.template Store<0>(sums, kAmxRowBytes);
}

inline void MultiplyInModel(int kind, const void* a, size_t stride, const void* b, void* sums) {
  Multiply<ModelTiles>(kind, a, stride, b, sums);
}

inline void MultiplyNatively(int kind, const void* a, size_t stride, const void* b, void* sums) {
  Multiply<KernelTiles>(kind, a, stride, b, sums);
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

using Product = void (*)(int, const void*, std::size_t, const void*, void*);
constexpr Product kModel[] = COREAI_TARGETS(MultiplyInModel);
constexpr Product kNative[] = COREAI_TARGETS(MultiplyNatively);
constexpr std::size_t kRows = 16, kWords = 16, kStride = 70;

struct Tile {
  std::array<std::uint8_t, kRows * kStride> a;
  std::array<std::uint8_t, kRows * 64> b;
  std::array<std::uint8_t, kRows * 64> sums;
};

void StoreBits(double x, std::uint8_t* to) {
  const std::uint16_t bits = Bits16(Quantize(x, DType::kBFloat16), DType::kBFloat16);
  std::memcpy(to, &bits, 2);
}

Tile RandomTile(int kind, unsigned seed) {
  Tile tile = {};
  std::mt19937 random(seed);
  std::normal_distribution<double> number;
  const auto fill = [&](auto* bytes) {
    for (std::size_t i = 0; i < bytes->size(); i += 2) {
      if (kind == 0) {
        StoreBits(std::ldexp(number(random), static_cast<int>(random() % 40) - 20), &(*bytes)[i]);
      } else {
        (*bytes)[i] = static_cast<std::uint8_t>(random());
        (*bytes)[i + 1] = static_cast<std::uint8_t>(random());
      }
    }
  };
  fill(&tile.a);
  fill(&tile.b);
  for (std::size_t i = 0; i < kRows * kWords; ++i) {
    const auto sum = static_cast<float>(number(random));
    std::memcpy(&tile.sums[4 * i], &sum, 4);
  }
  return tile;
}

double Element(const std::uint8_t* bytes, std::size_t i, int kind, bool is_signed) {
  if (kind != 0) return is_signed ? static_cast<std::int8_t>(bytes[i]) : bytes[i];
  std::uint16_t bits;
  std::memcpy(&bits, bytes + 2 * i, 2);
  return FromBits16(bits, DType::kBFloat16);
}

TEST(AmxModel, ProductsAreThoseOfTheDefinition) {
  for (const Target target : SupportedTargets()) {
    for (int kind = 0; kind < 4; ++kind) {
      Tile tile = RandomTile(kind, 7);
      const Tile before = tile;
      kModel[static_cast<std::size_t>(target)](kind, tile.a.data(), kStride, tile.b.data(),
                                               tile.sums.data());
      const std::size_t per_word = kind == 0 ? 2 : 4;
      for (std::size_t i = 0; i < kRows * kWords; ++i) {
        const std::size_t row = i / kWords, column = i % kWords;
        double want = 0, magnitude = 1;
        for (std::size_t k = 0; k < kWords * per_word; ++k) {
          const double a = Element(&before.a[row * kStride], k, kind, kind >= 2);
          const std::size_t at = column * per_word + k % per_word;
          const double b = Element(&before.b[k / per_word * 64], at, kind, kind % 2 == 1);
          want += 2 * a * b;
          magnitude += std::fabs(2 * a * b);
        }
        if (kind == 0) {
          float start, sum;
          std::memcpy(&start, &before.sums[4 * i], 4);
          std::memcpy(&sum, &tile.sums[4 * i], 4);
          EXPECT_NEAR(sum, start + want, 1e-6 * magnitude) << TargetName(target) << ' ' << i;
        } else {
          std::uint32_t start, sum;
          std::memcpy(&start, &before.sums[4 * i], 4);
          std::memcpy(&sum, &tile.sums[4 * i], 4);
          EXPECT_EQ(sum, start + static_cast<std::uint32_t>(static_cast<std::int64_t>(want)))
              << TargetName(target) << ' ' << kind << ' ' << i;
        }
      }
    }
  }
}

// Bytes of the sums of a product by the instructions and by the model.
void ExpectSame(int kind, const Tile& tile) {
  Tile native = tile, model = tile;
  const auto amx = static_cast<std::size_t>(Target::kAmx);
  kNative[amx](kind, native.a.data(), kStride, native.b.data(), native.sums.data());
  kModel[amx](kind, model.a.data(), kStride, model.b.data(), model.sums.data());
  EXPECT_EQ(native.sums, model.sums) << "kind " << kind;
}

TEST(Amx, InstructionsAgreeWithTheModelBitByBit) {
  if (!TargetIsSupported(Target::kAmx)) GTEST_SKIP() << "no AMX";
  for (int kind = 0; kind < 4; ++kind) {
    for (unsigned seed = 0; seed < 20; ++seed) ExpectSame(kind, RandomTile(kind, seed));
  }
  // Subnormal numbers, in factors, products and sums.
  Tile tile = RandomTile(0, 3);
  for (std::size_t i = 0; i < tile.a.size(); i += 6) StoreBits(0x1p-130, &tile.a[i]);
  for (std::size_t i = 2; i < tile.a.size(); i += 6) StoreBits(0x1p-80, &tile.a[i]);
  for (std::size_t i = 0; i < tile.b.size(); i += 4) StoreBits(0x1p-50, &tile.b[i]);
  for (std::size_t i = 0; i < kRows * kWords; ++i) {
    const float sum = i % 2 == 0 ? 0x1p-127f : 0x1p-149f;
    std::memcpy(&tile.sums[4 * i], &sum, 4);
  }
  ExpectSame(0, tile);
}

TEST(Amx, InfinityAndNanStayInTheirRowAndColumn) {
  for (const Target target : SupportedTargets()) {
    for (const Product product :
         {kModel[static_cast<std::size_t>(target)], kNative[static_cast<std::size_t>(target)]}) {
      const bool native = product == kNative[static_cast<std::size_t>(target)];
      if (native && target != Target::kAmx) continue;
      Tile tile = RandomTile(0, 5);
      StoreBits(INFINITY, &tile.a[3 * kStride]);
      StoreBits(NAN, &tile.b[9 * 4]);
      product(0, tile.a.data(), kStride, tile.b.data(), tile.sums.data());
      for (std::size_t i = 0; i < kRows * kWords; ++i) {
        float sum;
        std::memcpy(&sum, &tile.sums[4 * i], 4);
        EXPECT_EQ(std::isnan(sum), i % kWords == 9) << i;
        EXPECT_EQ(std::isinf(sum), i / kWords == 3 && i % kWords != 9) << i;
      }
    }
  }
}

}  // namespace
}  // namespace coreai::testing
#endif
