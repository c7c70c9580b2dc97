// Rows of float as sums of bfloat16, in tiles. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_FEW_BITS_PARTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_FEW_BITS_PARTS_INL_H_
#undef COREAI_KERNELS_FEW_BITS_PARTS_INL_H_
#else
#define COREAI_KERNELS_FEW_BITS_PARTS_INL_H_
#endif

#include "kernels/few_bits/codes-inl.h"
#include "simd/amx-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR  // which has no pairs

/// The nearest bfloat16, in the upper half of each lane. A finite number does not become infinite.
HWY_INLINE Floats NearestBFloat16(Floats x) {
  const WordTag d;
  const Words bits = hn::BitCast(d, x), upper = hn::Set(d, 0xFFFF0000u);
  const auto rounds = hn::Lt(hn::And(bits, hn::Set(d, 0x7FFFFFFFu)), hn::Set(d, 0x7F7F8000u));
  const Words nearest = hn::Add(bits, hn::IfThenElseZero(rounds, hn::Set(d, 0x8000u)));
  // A NaN must not lose all bits that make it one.
  const Words quiet = hn::BitCast(
      d, hn::IfThenElseZero(hn::IsNaN(x), hn::BitCast(FloatTag(), hn::Set(d, 0x400000u))));
  return hn::BitCast(FloatTag(), hn::And(hn::Or(nearest, quiet), upper));
}

/// The words (0, 2) and (1, 3) of four lanes each, as pairs of bfloat16: two vectors become one.
HWY_INLINE Words PairsOf(Floats first, Floats second) {
  const WordTag d;
  const hn::Repartition<uint64_t, WordTag> wide;
  const auto pair = [&](Floats x) HWY_ATTR {
    const Words bits = hn::BitCast(d, x);
    return hn::BitCast(wide, hn::Or(hn::ShiftRight<16>(bits), hn::Shuffle1032(bits)));
  };
  return hn::BitCast(d, hn::ConcatEven(wide, pair(second), pair(first)));
}

/// Elements that PairsOf takes.
inline constexpr size_t kTwoVectors = 2 * kLanes;

/// Writes kTwoVectors elements, of which there are `count` and zeros after them, to the tiles of
/// all parts. Each part is the nearest bfloat16 of what the parts before leave.
HWY_INLINE void SplitElements(const float* HWY_RESTRICT x, size_t count, size_t parts,
                              uint8_t* HWY_RESTRICT to) {
  const FloatTag d;
  const size_t more = count > kLanes ? count - kLanes : 0;
  Floats rest[2] = {hn::LoadN(d, x, HWY_MIN(count, kLanes)),
                    more > 0 ? hn::LoadN(d, x + kLanes, HWY_MIN(more, kLanes)) : hn::Zero(d)};
  for (size_t part = 0; part < parts; ++part, to += kAmxBytes) {
    const Floats nearest[2] = {NearestBFloat16(rest[0]), NearestBFloat16(rest[1])};
    hn::StoreU(PairsOf(nearest[0], nearest[1]), WordTag(), reinterpret_cast<uint32_t*>(to));
    for (size_t i = 0; i < 2; ++i) {
      const auto finite = hn::IsFinite(rest[i]);
      rest[i] = hn::IfThenElseZero(finite, hn::Sub(rest[i], nearest[i]));
    }
  }
}

inline void SplitIntoParts(const FewBitsWeight& w, const float* HWY_RESTRICT rows, size_t count,
                           size_t parts, void* tiles) {
  auto* const out = static_cast<uint8_t*>(tiles);
  const size_t depth = w.groups * w.group, group = w.group * w.tile_groups();
  const size_t tile_bytes = parts * kAmxBytes;
  if (count < kAmxRows) hwy::ZeroBytes(out, w.row_tiles() * tile_bytes);
  for (size_t row = 0; row < count; ++row) {
    uint8_t* to = out + row * kAmxRowBytes;
    for (const float* x = rows + row * depth; x < rows + (row + 1) * depth; x += group) {
      for (size_t k = 0; k < w.pair_tiles() * kFewBitsPairDepth; to += tile_bytes) {
        for (size_t part = 0; part < kAmxRowBytes; part += kLanes * 4, k += kTwoVectors) {
          const size_t at = HWY_MIN(k, group);
          SplitElements(x + at, group - at, parts, to + part);
        }
      }
    }
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
