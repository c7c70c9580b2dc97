// Products of a small batch of rows in float. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_FEW_BITS_SMALL_BATCH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_FEW_BITS_SMALL_BATCH_INL_H_
#undef COREAI_KERNELS_FEW_BITS_SMALL_BATCH_INL_H_
#else
#define COREAI_KERNELS_FEW_BITS_SMALL_BATCH_INL_H_
#endif

#include "kernels/few_bits/codes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

// Vectors of columns that are multiplied together. Targets with 16 registers have half as many.
template <size_t kRows>
inline constexpr size_t kBatchVecs = kRows == 1 && HWY_TARGET != HWY_AVX2 ? 4 : 2;

// Most rows whose sums are in registers.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SCALAR
inline constexpr size_t kMostRowsInOrder = 4;
#else
inline constexpr size_t kMostRowsInOrder = 8;
#endif

/// How many sums a product has, between which the codes of a word alternate to hide the latency of
/// the addition; with one, they are summed in their order.
template <size_t kRows>
inline constexpr size_t kFastTurns = 8 / (kRows * kBatchVecs<kRows>);

/// The products of a group, without its scale. Codes j of a word alternate between kTurns sums.
template <size_t kBits, size_t kTurns, size_t kRows, size_t kVecs, class Value>
HWY_INLINE void AddGroup(const Value (&value)[kVecs], const uint8_t* HWY_RESTRICT codes,
                         const float* HWY_RESTRICT left, size_t stride, size_t padded,
                         Floats (&sums)[kRows][kVecs]) {
  constexpr size_t kCodes = kWordCodes<kBits>;
  const FloatTag d;
  Floats parts[kTurns][kRows][kVecs];
#pragma GCC unroll 4
  for (size_t turn = 0; turn < kTurns; ++turn) {
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (size_t v = 0; v < kVecs; ++v) parts[turn][r][v] = hn::Zero(d);
    }
  }
  for (size_t k = 0; k < padded; codes += kUnitBytes<kBits>) {
    PrefetchUnit<kBits>(codes, kVecs);
    // Unrolled, 5-bit and 6-bit codes would take more than half of the code of all products.
#pragma GCC unroll 1
    for (size_t word = 0; word < kUnitWords<kBits>; ++word, k += kCodes) {
      Words words[kVecs];
#pragma GCC unroll 4
      for (size_t v = 0; v < kVecs; ++v) {
        words[v] = UnitWord<kBits>(codes + v * kLanes * 4, word);
      }
#pragma GCC unroll 16
      for (size_t j = 0; j < kCodes; ++j) {
#pragma GCC unroll 4
        for (size_t v = 0; v < kVecs; ++v) {
          const Floats w = value[v](words[v], j);
#pragma GCC unroll 8
          for (size_t r = 0; r < kRows; ++r) {
            Floats& sum = parts[j % kTurns][r][v];
            sum = hn::MulAdd(hn::Set(d, left[r * stride + k + j]), w, sum);
          }
        }
      }
    }
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) {
      sums[r][v] = parts[0][r][v];
      for (size_t turn = 1; turn < kTurns; ++turn) {
        sums[r][v] = hn::Add(sums[r][v], parts[turn][r][v]);
      }
    }
  }
}

template <size_t kBits, size_t kTurns, size_t kRows, size_t kVecs, class MakeValue>
HWY_NOINLINE void MultiplyColumns(const FewBitsWeight& w, const FewBitsSmallBatch& rows,
                                  size_t first, const MakeValue& make) {
  const FloatTag d;
  const size_t stride = w.groups * w.padded;
  const size_t bytes = w.padded * kFewBitsStrip * kBits / 8;
  const Columns columns(w, rows.column + first);
  Floats totals[kRows][kVecs];
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) totals[r][v] = hn::Zero(d);
  }
  for (size_t g = 0; g < w.groups; ++g) {
    const size_t at = columns.scales + g * kFewBitsStrip;
    decltype(make(size_t{})) value[kVecs];
    Floats sums[kRows][kVecs];
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) value[v] = make(at + v * kLanes);
    AddGroup<kBits, kTurns>(value, columns.codes + g * bytes, rows.left + g * w.padded, stride,
                            w.padded, sums);
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) {
      const Floats scale = ScalesOf(w, at + v * kLanes);
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) {
        totals[r][v] = hn::MulAdd(sums[r][v], scale, totals[r][v]);
      }
    }
  }
  StoreTotals(totals, rows.output + first);
}

template <size_t kBits, size_t kRows, size_t kTurns = kFastTurns<kRows>>
void MultiplyStrip(const FewBitsWeight& w, const FewBitsSmallBatch& rows) {
  constexpr size_t kVecs = kBatchVecs<kRows>;
  WithValues<kWordBits<kBits>>(w, [&](const auto& make) HWY_ATTR {
    for (size_t first = 0; first < kFewBitsStrip; first += kVecs * kLanes) {
      MultiplyColumns<kBits, kTurns, kRows, kVecs>(w, rows, first, make);
    }
  });
}

template <size_t kBits>
void MultiplyRows(const FewBitsWeight& w, const FewBitsSmallBatch& rows) {
  static_assert(kFewBitsSmallBatch == 4, "one case for each");
  switch (rows.rows) {
    case 1:
      return MultiplyStrip<kBits, 1>(w, rows);
    case 2:
      return MultiplyStrip<kBits, 2>(w, rows);
    case 3: {
      const size_t stride = 2 * w.groups * w.padded;
      MultiplyStrip<kBits, 2>(w, {rows.left, rows.output, 2, rows.column});
      return MultiplyStrip<kBits, 1>(
          w, {rows.left + stride, rows.output + 2 * kFewBitsStrip, 1, rows.column});
    }
    case 4:
      return MultiplyStrip<kBits, 4>(w, rows);
    default:
      return;
  }
}

inline void MultiplySmallBatch(const FewBitsWeight& w, const FewBitsSmallBatch& rows) {
  if (w.bits == 2) return MultiplyRows<2>(w, rows);
  if (w.bits == 4) return MultiplyRows<4>(w, rows);
  if (w.bits == 5) return MultiplyRows<5>(w, rows);
  if (w.bits == 6) return MultiplyRows<6>(w, rows);
  MultiplyRows<8>(w, rows);
}

/// Multiplies as many groups of kRows rows as there are, and the rest in smaller ones.
template <size_t kBits, size_t kRows>
void MultiplyRowsInOrder(const FewBitsWeight& w, FewBitsSmallBatch rows) {
  for (; rows.rows >= kRows; rows.rows -= kRows) {
    MultiplyStrip<kBits, kRows, 1>(w, rows);
    rows.left += kRows * w.groups * w.padded;
    rows.output += kRows * kFewBitsStrip;
  }
  if constexpr (kRows > 1) MultiplyRowsInOrder<kBits, kRows / 2>(w, rows);
}

inline void MultiplyInOrder(const FewBitsWeight& w, const FewBitsSmallBatch& rows) {
  if (w.bits == 2) return MultiplyRowsInOrder<2, kMostRowsInOrder>(w, rows);
  if (w.bits == 4) return MultiplyRowsInOrder<4, kMostRowsInOrder>(w, rows);
  if (w.bits == 5) return MultiplyRowsInOrder<5, kMostRowsInOrder>(w, rows);
  if (w.bits == 6) return MultiplyRowsInOrder<6, kMostRowsInOrder>(w, rows);
  MultiplyRowsInOrder<8, kMostRowsInOrder>(w, rows);
}

template <size_t kRows>
HWY_INLINE void SubtractFromRows(const FewBitsWeight& w, const FewBitsMinimums& a, size_t row,
                                 size_t first) {
  const FloatTag d;
  const Columns columns(w, a.column + first);
  const float* const sums = a.sums + row * w.groups;
  float* const out = a.output + row * a.stride + first;
  Floats totals[kRows];
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) totals[r] = hn::LoadU(d, out + r * a.stride);
  for (size_t g = 0; g < w.groups; ++g) {
    const Floats minimum = MinimumsOf(w, columns.scales + g * kFewBitsStrip);
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      totals[r] = hn::NegMulAdd(hn::Set(d, sums[r * w.groups + g]), minimum, totals[r]);
    }
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) hn::StoreU(totals[r], d, out + r * a.stride);
}

// Products of the codes are exact integers times a scale, so that with one element that is not zero
// the difference is rounded once, as in the weight itself.
inline void SubtractMinimums(const FewBitsWeight& w, const FewBitsMinimums& a) {
  for (size_t c = 0; c < a.count; c += kLanes) {
    size_t r = 0;
    for (; r + 8 <= a.rows; r += 8) SubtractFromRows<8>(w, a, r, c);
    for (; r < a.rows; ++r) SubtractFromRows<1>(w, a, r, c);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
