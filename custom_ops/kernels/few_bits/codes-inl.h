// Codes of a packed weight in registers. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_FEW_BITS_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_FEW_BITS_CODES_INL_H_
#undef COREAI_KERNELS_FEW_BITS_CODES_INL_H_
#else
#define COREAI_KERNELS_FEW_BITS_CODES_INL_H_
#endif

#include "kernels/few_bits/few_bits.h"
#include "simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

using FloatTag = hn::ScalableTag<float>;
using WordTag = hn::ScalableTag<uint32_t>;
using IntTag = hn::ScalableTag<int32_t>;
using Floats = hn::Vec<FloatTag>;
using Words = hn::Vec<WordTag>;
using Ints = hn::Vec<IntTag>;

inline constexpr size_t kLanes = hn::MaxLanes(FloatTag());
static_assert(kFewBitsTile % kLanes == 0, "whole vectors in a tile");

// Distance at which a weight is prefetched, in bytes.
inline constexpr size_t kCodesAhead = 1024;

/// Parts of a packed weight, for the vector of columns that begins at `column`.
struct Columns {
  const uint8_t* codes;  ///< words of this vector are 64 bytes apart
  size_t scales;         ///< index of its first scale; those of groups are kFewBitsTile apart

  Columns(const FewBitsWeight& w, size_t column)
      : codes(w.codes + column / kFewBitsTile * w.tile_bytes() + column % kFewBitsTile * 4),
        scales(column / kFewBitsTile * w.groups * kFewBitsTile + column % kFewBitsTile) {}
};

HWY_INLINE Words LoadWords(const uint8_t* HWY_RESTRICT p) {
  return hn::LoadU(WordTag(), reinterpret_cast<const uint32_t*>(p));
}

/// Scales from index `at` on. The type is looked up at run time, since a kernel per type would be
/// as fast and three times as large.
HWY_INLINE Floats ScalesOf(const FewBitsWeight& w, size_t at) {
  switch (w.scale) {
    case DType::kFloat16:
      return LoadWide(FloatTag(), static_cast<const hwy::float16_t*>(w.scales) + at);
    case DType::kBFloat16:
      return LoadWide(FloatTag(), static_cast<const hwy::bfloat16_t*>(w.scales) + at);
    default:
      return hn::LoadU(FloatTag(), static_cast<const float*>(w.scales) + at);
  }
}

HWY_INLINE Floats ZerosOf(const FewBitsWeight& w, size_t at) {
  return w.zeros == nullptr ? hn::Set(FloatTag(), w.zero) : hn::LoadU(FloatTag(), w.zeros + at);
}

/// The values of codes: looked up in a palette, or the codes less their zero points.
template <size_t kBits>
struct Looked {
  const float* palette;

  HWY_INLINE Floats operator()(Words codes) const {
    const Ints index = hn::BitCast(IntTag(), codes);
    if constexpr (kBits <= 4 && kLanes >= 16) {
      return hn::TableLookupLanes(hn::LoadU(FloatTag(), palette),
                                  hn::IndicesFromVec(FloatTag(), index));
    } else {
      return hn::GatherIndex(FloatTag(), palette, index);
    }
  }
};

struct Centered {
  Floats zero;

  HWY_INLINE Floats operator()(Words codes) const {
    return hn::Sub(hn::ConvertTo(FloatTag(), hn::BitCast(IntTag(), codes)), zero);
  }
};

/// Code j (below 32 / kBits) of each word of a unit; the order is that of k.
template <size_t kBits>
HWY_INLINE Words CodeOf(Words unit, size_t j) {
  const int shift = static_cast<int>(j % 4 * 8 + j / 4 * kBits);
  return hn::And(hn::ShiftRightSame(unit, shift), hn::Set(WordTag(), (1u << kBits) - 1));
}

/// Stores sums of rows that are a strip apart, at an address aligned to a vector.
template <size_t kRows, size_t kVecs>
HWY_INLINE void StoreTotals(const Floats (&totals)[kRows][kVecs], float* HWY_RESTRICT out) {
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) {
      hn::Store(totals[r][v], FloatTag(), out + r * kFewBitsStrip + v * kLanes);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
