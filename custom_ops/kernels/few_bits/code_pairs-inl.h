// Values of codes as pairs of bfloat16, for tiles. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_FEW_BITS_CODE_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_FEW_BITS_CODE_PAIRS_INL_H_
#undef COREAI_KERNELS_FEW_BITS_CODE_PAIRS_INL_H_
#else
#define COREAI_KERNELS_FEW_BITS_CODE_PAIRS_INL_H_
#endif

#include "kernels/few_bits/codes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR  // which has no pairs

// Pair i of a unit has its codes 4q + j and 4q + j + 2, where q = i / 2 and j = i % 2: those are in
// different halves of a word, so that one shift moves both to where they are looked up.

/// Pairs of values of any kind that bfloat16 represents.
template <class Value>
struct ValuePairs {
  Value value;

  HWY_INLINE Words operator()(Words unit, size_t i) const {
    const WordTag d;
    const size_t first = i / 2 * 4 + i % 2;
    const Words low = hn::BitCast(d, value(unit, first));
    const Words high = hn::BitCast(d, value(unit, first + 2));
    return hn::Or(hn::ShiftRight<16>(low), hn::And(high, hn::Set(d, 0xFFFF0000u)));
  }
};

using HalfTag = hn::Repartition<uint16_t, WordTag>;

/// The codes of a pair in the low bits of both halves of a word.
template <size_t kBits>
HWY_INLINE Words ShiftedPair(Words unit, size_t i) {
  return hn::ShiftRightSame(unit, static_cast<int>(i % 2 * 8 + i / 2 * kBits));
}

/// Looks up both halves of a word by their low five bits.
HWY_INLINE Words LookUpPair(hn::Vec<HalfTag> table, Words index) {
  const auto indices = hn::IndicesFromVec(HalfTag(), hn::BitCast(HalfTag(), index));
  return hn::BitCast(WordTag(), hn::TableLookupLanes(table, indices));
}

/// Pairs of values in a register. It has a value for each five bits: of codes with fewer, each
/// value several times, for the bits above.
template <size_t kBits>
struct PairsInRegister {
  hn::Vec<HalfTag> table;

  HWY_INLINE Words operator()(Words unit, size_t i) const {
    return LookUpPair(table, ShiftedPair<kBits>(unit, i));
  }
};

/// Pairs of codes less their zero points, which have five bits.
template <size_t kBits>
struct CenteredPairs {
  hn::Vec<HalfTag> table;
  Words zeros;  ///< of the column, in both halves

  HWY_INLINE Words operator()(Words unit, size_t i) const {
    constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x10001u;
    const Words codes = hn::And(ShiftedPair<kBits>(unit, i), hn::Set(WordTag(), kMask));
    const HalfTag d;
    const auto centered = hn::Sub(hn::BitCast(d, codes), hn::BitCast(d, zeros));
    return LookUpPair(table, hn::BitCast(WordTag(), centered));
  }
};

/// Pairs of codes of six bits less the zero point of all groups; words have them as bytes.
struct PairsInTwoRegisters {
  hn::Vec<HalfTag> low, high;  ///< of codes from 0 and from 32 on

  HWY_INLINE Words operator()(Words unit, size_t i) const {
    const HalfTag d;
    // Both have as many values as the bits that are looked up: those above need no mask.
    const auto indices = hn::IndicesFromVec(d, hn::BitCast(d, ShiftedPair<8>(unit, i)));
    return hn::BitCast(WordTag(), hn::TwoTablesLookupLanes(d, low, high, indices));
  }
};

/// Pairs of codes of eight bits less their integral zero points.
struct PairsOfBytes {
  Floats zero;  ///< plus 2^23

  HWY_INLINE Words operator()(Words unit, size_t i) const {
    const WordTag d;
    // The bits of 2^23 plus an integer have the integer as the lowest ones.
    const auto value = [&](size_t place) HWY_ATTR {
      const Words shifted = hn::ShiftRightSame(unit, static_cast<int>(place * 8));
      const Words sum = hn::OrAnd(hn::Set(d, 0x4B000000u), shifted, hn::Set(d, 0xFFu));
      return hn::BitCast(d, hn::Sub(hn::BitCast(FloatTag(), sum), zero));
    };
    return hn::OrAnd(hn::ShiftRight<16>(value(i)), value(i + 2), hn::Set(d, 0xFFFF0000u));
  }
};

/// The table whose element i is value(i), for i below 32.
template <class Value>
HWY_INLINE hn::Vec<HalfTag> HalfTable(const Value& value) {
  HWY_ALIGN uint16_t table[32];
  for (size_t i = 0; i < 32; ++i) {
    table[i] = static_cast<uint16_t>(hwy::BitCastScalar<uint32_t>(value(i)) >> 16);
  }
  return hn::LoadU(HalfTag(), table);
}

/// Calls `body` with a function that returns, for the index of a group's first scale, what makes
/// pairs of values of its codes, which have kBits in memory.
template <size_t kStored, class Body>
HWY_INLINE void WithPairs(const FewBitsWeight& w, const Body& body) {
  constexpr size_t kBits = kWordBits<kStored>;
  if constexpr (kInRegister<kBits>) {
    if (w.palette != nullptr || w.zeros == nullptr) {
      const auto table = HalfTable([&](size_t i) {
        const size_t code = i % (size_t{1} << kBits);
        return w.palette != nullptr ? w.palette[code] : static_cast<float>(code) - w.zero;
      });
      return body([&](size_t) HWY_ATTR { return PairsInRegister<kBits>{table}; });
    }
    if (w.IsWithin(-16, 15)) {
      const auto table =
          HalfTable([](size_t i) { return static_cast<float>(i) - (i < 16 ? 0.0f : 32.0f); });
      return body([&](size_t at) HWY_ATTR {
        const Ints zeros = hn::NearestInt(hn::LoadU(FloatTag(), w.zeros + at));
        const Words both = hn::Mul(hn::BitCast(WordTag(), zeros), hn::Set(WordTag(), 0x10001u));
        return CenteredPairs<kBits>{table, both};
      });
    }
  }
  if constexpr (kLanes == 16 && (kStored == 5 || kStored == 6)) {
    if (w.palette == nullptr && w.zeros == nullptr) {
      const auto table_from = [&](size_t first) HWY_ATTR {
        return HalfTable([&](size_t i) { return static_cast<float>(first + i) - w.zero; });
      };
      if constexpr (kStored == 5) {
        const PairsInRegister<kBits> pairs = {table_from(0)};
        return body([&](size_t) HWY_ATTR { return pairs; });
      } else {
        const PairsInTwoRegisters pairs = {table_from(0), table_from(32)};
        return body([&](size_t) HWY_ATTR { return pairs; });
      }
    }
  }
  if constexpr (kStored == 8) {
    if (w.palette == nullptr && w.IsWithin(-256, 255)) {
      return body([&](size_t at) HWY_ATTR {
        return PairsOfBytes{hn::Add(ZerosOf(w, at), hn::Set(FloatTag(), 0x1p23f))};
      });
    }
  }
  WithValues<kBits>(w, [&](const auto& make) HWY_ATTR {
    body([&](size_t at) HWY_ATTR { return ValuePairs<decltype(make(at))>{make(at)}; });
  });
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
