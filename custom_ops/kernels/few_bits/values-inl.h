// Products of few rows in float, and the weight in float. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_FEW_BITS_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_FEW_BITS_VALUES_INL_H_
#undef COREAI_KERNELS_FEW_BITS_VALUES_INL_H_
#else
#define COREAI_KERNELS_FEW_BITS_VALUES_INL_H_
#endif

#include "kernels/few_bits/codes-inl.h"
#include "kernels/gather_mm/gather_mm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// The products of a group, without its scale. Codes j of a unit alternate between kTurns sums, to
/// hide the latency of the addition.
template <size_t kBits, size_t kRows, size_t kVecs, class Value>
HWY_INLINE void AddGroup(const Value (&value)[kVecs], const uint8_t* const (&codes)[kVecs],
                         const float* HWY_RESTRICT left, size_t stride, size_t padded,
                         Floats (&sums)[kRows][kVecs]) {
  constexpr size_t kUnit = 32 / kBits;
  constexpr size_t kTurns = kRows == 1 ? 4 : kRows == 2 ? 2 : 1;
  const FloatTag d;
  Floats parts[kTurns][kRows][kVecs];
#pragma GCC unroll 4
  for (size_t turn = 0; turn < kTurns; ++turn) {
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (size_t v = 0; v < kVecs; ++v) parts[turn][r][v] = hn::Zero(d);
    }
  }
  for (size_t k = 0; k < padded; k += kUnit) {
    const size_t at = k / kUnit * 64;
    Words units[kVecs];
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) {
      __builtin_prefetch(codes[v] + at + kCodesAhead);
      units[v] = LoadWords(codes[v] + at);
    }
#pragma GCC unroll 16
    for (size_t j = 0; j < kUnit; ++j) {
#pragma GCC unroll 4
      for (size_t v = 0; v < kVecs; ++v) {
        const Floats w = value[v](CodeOf<kBits>(units[v], j));
#pragma GCC unroll 4
        for (size_t r = 0; r < kRows; ++r) {
          Floats& sum = parts[j % kTurns][r][v];
          sum = hn::MulAdd(hn::Set(d, left[r * stride + k + j]), w, sum);
        }
      }
    }
  }
#pragma GCC unroll 4
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

template <size_t kBits, size_t kRows, size_t kVecs, class MakeValue>
HWY_NOINLINE void MultiplyColumns(const FewBitsWeight& w, const FewBitsRows& rows, size_t first,
                                  const MakeValue& make) {
  const FloatTag d;
  const size_t stride = w.groups * w.padded;
  const size_t bytes = w.padded * kFewBitsTile * kBits / 8;
  Floats totals[kRows][kVecs];
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) totals[r][v] = hn::Zero(d);
  }
  for (size_t g = 0; g < w.groups; ++g) {
    const uint8_t* codes[kVecs];
    decltype(make(size_t{})) value[kVecs];
    Floats sums[kRows][kVecs];
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) {
      const Columns columns(w, rows.column + first + v * kLanes);
      codes[v] = columns.codes + g * bytes;
      value[v] = make(columns.scales + g * kFewBitsTile);
    }
    AddGroup<kBits, kRows, kVecs>(value, codes, rows.left + g * w.padded, stride, w.padded, sums);
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) {
      const Columns columns(w, rows.column + first + v * kLanes);
      const Floats scale = ScalesOf(w, columns.scales + g * kFewBitsTile);
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) {
        totals[r][v] = hn::MulAdd(sums[r][v], scale, totals[r][v]);
      }
    }
  }
  StoreTotals(totals, rows.output + first);
}

template <size_t kBits, size_t kRows>
void MultiplyStrip(const FewBitsWeight& w, const FewBitsRows& rows) {
  constexpr size_t kVecs = 2;
  for (size_t first = 0; first < kFewBitsStrip; first += kVecs * kLanes) {
    if (w.palette != nullptr) {
      const auto make = [&](size_t) HWY_ATTR { return Looked<kBits>{w.palette}; };
      MultiplyColumns<kBits, kRows, kVecs>(w, rows, first, make);
    } else {
      const auto make = [&](size_t at) HWY_ATTR { return Centered{ZerosOf(w, at)}; };
      MultiplyColumns<kBits, kRows, kVecs>(w, rows, first, make);
    }
  }
}

template <size_t kBits>
void MultiplyRows(const FewBitsWeight& w, const FewBitsRows& rows) {
  static_assert(kFewBitsFewRows == 4, "one case for each");
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

inline void FewBits(const FewBitsWeight& w, const FewBitsRows& rows) {
  if (w.bits == 2) return MultiplyRows<2>(w, rows);
  if (w.bits == 4) return MultiplyRows<4>(w, rows);
  MultiplyRows<8>(w, rows);
}

/// Writes kVecs vectors of columns of a panel, whose rows are `stride` elements apart.
template <size_t kBits, size_t kVecs, class MakeValue>
HWY_NOINLINE void DequantizePanel(const FewBitsWeight& w, size_t column, const MakeValue& make,
                                  size_t stride, float* HWY_RESTRICT panel) {
  constexpr size_t kUnit = 32 / kBits;
  const FloatTag d;
  const uint8_t* codes[kVecs];
  size_t at[kVecs];
#pragma GCC unroll 4
  for (size_t v = 0; v < kVecs; ++v) {
    const Columns columns(w, column + v * kLanes);
    codes[v] = columns.codes;
    at[v] = columns.scales;
  }
  for (size_t g = 0; g < w.groups; ++g) {
    decltype(make(size_t{})) value[kVecs];
    Floats scale[kVecs];
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) {
      value[v] = make(at[v] + g * kFewBitsTile);
      scale[v] = ScalesOf(w, at[v] + g * kFewBitsTile);
    }
    for (size_t k = 0; k < w.padded; k += kUnit) {
      Words units[kVecs];
#pragma GCC unroll 4
      for (size_t v = 0; v < kVecs; ++v) {
        units[v] = LoadWords(codes[v]);
        codes[v] += 64;
      }
      const auto write = [&](size_t j) HWY_ATTR {
#pragma GCC unroll 4
        for (size_t v = 0; v < kVecs; ++v) {
          const Floats x = hn::Mul(value[v](CodeOf<kBits>(units[v], j)), scale[v]);
          hn::Store(x, d, panel + v * kLanes);
        }
        panel += stride;
      };
      if (k + kUnit <= w.group) {
#pragma GCC unroll 16
        for (size_t j = 0; j < kUnit; ++j) write(j);
      } else {
        for (size_t j = 0; k + j < w.group; ++j) write(j);
      }
    }
  }
}

template <size_t kBits, class MakeValue>
void DequantizeWith(const FewBitsWeight& w, size_t column, size_t count, const MakeValue& make,
                    float* matrix) {
  constexpr size_t kWidth = kPanelWidth<float>;
  static_assert(kFewBitsPanels % kWidth == 0, "whole panels");
  const size_t depth = w.groups * w.group;
  size_t first = 0;
  for (; first + kWidth <= count; first += kWidth) {
    DequantizePanel<kBits, kPanelVecs>(w, column + first, make, kWidth, matrix + first * depth);
  }
  const size_t width = (count - first + kLanes - 1) / kLanes * kLanes;
  for (size_t lane = 0; lane < width; lane += kLanes) {
    float* const panel = matrix + first * depth + lane;
    DequantizePanel<kBits, 1>(w, column + first + lane, make, width, panel);
  }
}

template <size_t kBits>
void DequantizePanels(const FewBitsWeight& w, size_t column, size_t count, float* matrix) {
  if (w.palette != nullptr) {
    const auto make = [&](size_t) HWY_ATTR { return Looked<kBits>{w.palette}; };
    return DequantizeWith<kBits>(w, column, count, make, matrix);
  }
  const auto make = [&](size_t at) HWY_ATTR { return Centered{ZerosOf(w, at)}; };
  DequantizeWith<kBits>(w, column, count, make, matrix);
}

inline void FewBitsDequantize(const FewBitsWeight& w, size_t column, size_t count, float* matrix) {
  if (w.bits == 2) return DequantizePanels<2>(w, column, count, matrix);
  if (w.bits == 4) return DequantizePanels<4>(w, column, count, matrix);
  DequantizePanels<8>(w, column, count, matrix);
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
