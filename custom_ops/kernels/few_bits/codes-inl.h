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
#include "simd/quad-inl.h"

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
static_assert(kFewBitsStrip % kLanes == 0, "whole vectors in a strip");

// Size of a word of all columns of a strip, and of a unit.
inline constexpr size_t kWordBytes = kFewBitsStrip * 4;
template <size_t kBits>
inline constexpr size_t kUnitBytes = kFewBitsStrip * UnitCodes(kBits) * kBits / 8;
// Bits of a code in a register: those of 5 and 6 bits become bytes.
template <size_t kBits>
inline constexpr size_t kWordBits = kBits > 4 ? 8 : kBits;
// Codes of a register's word, and words of a unit.
template <size_t kBits>
inline constexpr size_t kWordCodes = 32 / kWordBits<kBits>;
template <size_t kBits>
inline constexpr size_t kUnitWords = UnitCodes(kBits) / kWordCodes<kBits>;
// Distance at which a weight is prefetched, in bytes: a page, at whose end hardware
// prefetchers stop.
inline constexpr size_t kCodesAhead = 4096;

/// Parts of a packed weight, for the vector of columns that begins at `column`.
struct Columns {
  const uint8_t* codes;  ///< consecutive words are kWordBytes apart
  size_t scales;         ///< index of its first scale; those of groups are kFewBitsStrip apart

  Columns() = default;
  Columns(const FewBitsWeight& w, size_t column)
      : codes(w.codes + column / kFewBitsStrip * w.strip_bytes() + column % kFewBitsStrip * 4),
        scales(column / kFewBitsStrip * w.groups * kFewBitsStrip + column % kFewBitsStrip) {}
};

HWY_INLINE Words LoadWords(const uint8_t* HWY_RESTRICT p) {
  return hn::LoadU(WordTag(), reinterpret_cast<const uint32_t*>(p));
}

/// Word `i` of the unit at `p`, of codes of kWordBits.
template <size_t kBits>
HWY_INLINE Words UnitWord(const uint8_t* HWY_RESTRICT p, size_t i) {
  if constexpr (kUnitWords<kBits> == 1) {
    return LoadWords(p);
  } else {
    constexpr uint32_t kAbove = ((1u << kBits) - 16) * 0x01010101u;
    const Words low = QuadsOf<4>(LoadWords(p + i / 2 * kWordBytes), static_cast<int>(i % 2));
    const Words last = LoadWords(p + kUnitWords<kBits> / 2 * kWordBytes);
    const int place = static_cast<int>(i * (kBits - 4));
    const Words above =
        place < 4 ? hn::ShiftLeftSame(last, 4 - place) : hn::ShiftRightSame(last, place - 4);
    return hn::OrAnd(low, above, hn::Set(WordTag(), kAbove));
  }
}

/// Prefetches what is kCodesAhead after the unit at `p`, for columns that fill `vecs` vectors.
template <size_t kBits>
HWY_INLINE void PrefetchUnit(const uint8_t* p, size_t vecs) {
#pragma GCC unroll 5
  for (size_t word = 0; word < kUnitBytes<kBits> / kWordBytes; ++word) {
#pragma GCC unroll 4
    for (size_t v = 0; v < vecs; ++v) {
      if (v * kLanes % 16 == 0) {
        __builtin_prefetch(p + word * kWordBytes + v * kLanes * 4 + kCodesAhead);
      }
    }
  }
}

/// Prefetches the codes and scales of later groups, a few cache lines with each call. Calls are
/// spread over the products of the current block, so that memory is read while tiles are
/// multiplied.
class GroupsAhead {
 public:
  GroupsAhead() = default;

  /// Of a block of `depth` codes of each column from `first` on, with `groups` scales, in `calls`
  /// calls.
  GroupsAhead(const FewBitsWeight& w, const Columns& columns, size_t first, size_t depth,
              size_t groups, size_t calls) {
    const size_t code = kFewBitsStrip / 8 * w.bits;
    const bool is_single = w.scale_factors == nullptr;
    const size_t size = is_single ? SizeOf(w.scale) : 1, scales = kFewBitsStrip * size;
    const auto* from = is_single ? static_cast<const uint8_t*>(w.scales)
                                 : reinterpret_cast<const uint8_t*>(w.scale_factors);
    const size_t ahead = first + kDistance / code;
    codes_ = {columns.codes + ahead * code, CeilLines(depth * code, calls)};
    scales_ = {from + columns.scales * size + ahead / w.padded * scales,
               CeilLines(groups * scales, calls)};
  }

  HWY_INLINE void Fetch() {
    codes_.Fetch();
    scales_.Fetch();
  }

 private:
  // Bytes of codes. 16 rows by 640 × 65536 codes of 5 bits took 0.85 of the time with codes alone a
  // page ahead, 0.84 to 0.9 at 8 and 32 KB, and 0.93 without scales (AMX, 2026-11).
  static constexpr size_t kDistance = 16384;
  static constexpr size_t kLine = 64;

  struct Lines {
    HWY_INLINE void Fetch() {
      for (size_t i = 0; i < count; ++i, next += kLine) __builtin_prefetch(next, 0, 2);
    }

    const uint8_t* next;
    size_t count;
  };

  static size_t CeilLines(size_t bytes, size_t calls) {
    return (bytes + kLine * calls - 1) / (kLine * calls);
  }

  Lines codes_ = {}, scales_ = {};
};

/// Numbers of a type from index `at` on. The type is looked up at run time, since a kernel per type
/// would be as fast and three times as large.
HWY_INLINE Floats LoadOf(DType type, const void* from, size_t at) {
  switch (type) {
    case DType::kFloat16:
      return LoadWide(FloatTag(), static_cast<const hwy::float16_t*>(from) + at);
    case DType::kBFloat16:
      return LoadWide(FloatTag(), static_cast<const hwy::bfloat16_t*>(from) + at);
    default:
      return hn::LoadU(FloatTag(), static_cast<const float*>(from) + at);
  }
}

/// Scales or minimums of groups, of one or two levels.
HWY_INLINE Floats LevelsOf(const FewBitsWeight& w, DType type, const void* levels,
                           const int8_t* factors, size_t at) {
  if (factors == nullptr) return LoadOf(type, levels, at);
  const hn::Rebind<int8_t, FloatTag> narrow;
  const size_t block = at / kFewBitsStrip >> w.block_shift;
  const Ints factor = hn::PromoteTo(IntTag(), hn::LoadU(narrow, factors + at));
  return hn::Mul(LoadOf(type, levels, block * kFewBitsStrip + at % kFewBitsStrip),
                 hn::ConvertTo(FloatTag(), factor));
}

/// Scales from the index `at` of a group and a column on.
HWY_INLINE Floats ScalesOf(const FewBitsWeight& w, size_t at) {
  return LevelsOf(w, w.scale, w.scales, w.scale_factors, at);
}

HWY_INLINE Floats MinimumsOf(const FewBitsWeight& w, size_t at) {
  return LevelsOf(w, w.minimum, w.minimums, w.minimum_factors, at);
}

HWY_INLINE Floats ZerosOf(const FewBitsWeight& w, size_t at) {
  return w.zeros == nullptr ? hn::Set(FloatTag(), w.zero) : hn::LoadU(FloatTag(), w.zeros + at);
}

/// Code j (below 32 / kBits) of each word, in the low bits; the order is that of k.
template <size_t kBits>
HWY_INLINE Ints ShiftedCode(Words unit, size_t j) {
  const int shift = static_cast<int>(j % 4 * 8 + j / 4 * kBits);
  return hn::BitCast(IntTag(), hn::ShiftRightSame(unit, shift));
}

/// The same without the bits above.
template <size_t kBits>
HWY_INLINE Ints CodeOf(Words unit, size_t j) {
  return hn::And(ShiftedCode<kBits>(unit, j), hn::Set(IntTag(), (1 << kBits) - 1));
}

/// Whether a register has a value for each code. Its 16 lanes are looked up by the low four bits of
/// an index, so that a code needs no mask.
template <size_t kBits>
inline constexpr bool kInRegister = kBits <= 4 && kLanes == 16;

/// The values of codes in a register, from a palette or less the zero point of all groups.
template <size_t kBits>
struct InRegister {
  Floats table;

  HWY_INLINE Floats operator()(Words unit, size_t j) const {
    return hn::TableLookupLanes(table, hn::IndicesFromVec(FloatTag(), ShiftedCode<kBits>(unit, j)));
  }
};

/// The codes in a register, less the zero point of the group.
template <size_t kBits>
struct CenteredInRegister {
  InRegister<kBits> codes;
  Floats zero;

  HWY_INLINE Floats operator()(Words unit, size_t j) const { return hn::Sub(codes(unit, j), zero); }
};

/// The values of codes in a palette.
template <size_t kBits>
struct InPalette {
  const float* palette;

  HWY_INLINE Floats operator()(Words unit, size_t j) const {
    return hn::GatherIndex(FloatTag(), palette, CodeOf<kBits>(unit, j));
  }
};

/// The codes less their zero points.
template <size_t kBits>
struct Centered {
  Floats zero;

  HWY_INLINE Floats operator()(Words unit, size_t j) const {
    return hn::Sub(hn::ConvertTo(FloatTag(), CodeOf<kBits>(unit, j)), zero);
  }
};

/// The table of InRegister.
template <size_t kBits>
HWY_INLINE InRegister<kBits> TableOf(const FewBitsWeight& w) {
  constexpr size_t kMask = (size_t{1} << kBits) - 1;
  const float zero = w.zeros == nullptr ? w.zero : 0.0f;
  HWY_ALIGN float values[kLanes];
  for (size_t i = 0; i < kLanes; ++i) {
    const size_t code = i & kMask;
    values[i] = w.palette != nullptr ? w.palette[code] : static_cast<float>(code) - zero;
  }
  return {hn::Load(FloatTag(), values)};
}

/// Calls `body` with a function that returns, for the index of a group's first scale, what makes
/// values of its codes.
template <size_t kBits, class Body>
HWY_INLINE void WithValues(const FewBitsWeight& w, const Body& body) {
  const bool centers = w.palette == nullptr && w.zeros != nullptr;
  if constexpr (kInRegister<kBits>) {
    const InRegister<kBits> table = TableOf<kBits>(w);
    if (!centers) return body([&](size_t) HWY_ATTR { return table; });
    body([&](size_t at) HWY_ATTR {
      return CenteredInRegister<kBits>{table, hn::LoadU(FloatTag(), w.zeros + at)};
    });
  } else {
    if (w.palette != nullptr) {
      return body([&](size_t) HWY_ATTR { return InPalette<kBits>{w.palette}; });
    }
    body([&](size_t at) HWY_ATTR { return Centered<kBits>{ZerosOf(w, at)}; });
  }
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
