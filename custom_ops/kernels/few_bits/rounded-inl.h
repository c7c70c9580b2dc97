// Products of rows of 8-bit integers with codes, exact within a group. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_FEW_BITS_ROUNDED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_FEW_BITS_ROUNDED_INL_H_
#undef COREAI_KERNELS_FEW_BITS_ROUNDED_INL_H_
#else
#define COREAI_KERNELS_FEW_BITS_ROUNDED_INL_H_
#endif

#include "kernels/few_bits/codes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

// Most rows at a time: their sums are in registers.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SCALAR
inline constexpr size_t kMostRoundedRows = 4;
#else
inline constexpr size_t kMostRoundedRows = 8;
#endif

template <class D, class V, size_t kRows, size_t kVecs>
HWY_INLINE void SetZero(D d, V (&all)[kRows][kVecs]) {
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) all[r][v] = hn::Zero(d);
  }
}

template <bool kVnni, size_t kBits, size_t kRows, size_t kVecs>
HWY_NOINLINE void MultiplyRounded(const FewBitsWeight& w, const RoundedRows& rows, size_t row,
                                  size_t first) {
  const FloatTag d;
  const size_t depth = w.groups * w.padded;
  const Columns columns(w, rows.column + first);
  const uint8_t* HWY_RESTRICT codes = columns.codes;
  Floats totals[kRows][kVecs];
  SetZero(d, totals);
  const int8_t* HWY_RESTRICT left = rows.left + row * depth;
  for (size_t g = 0; g < w.groups; ++g, left += w.padded) {
    Ints sums[kRows][kVecs];
    SetZero(IntTag(), sums);
    for (size_t k = 0; k < w.padded; codes += kUnitBytes<kBits>) {
      if constexpr (kRows == 1) PrefetchUnit<kBits>(codes, kVecs);
#pragma GCC unroll 8
      for (size_t word = 0; word < kUnitWords<kBits>; ++word) {
        Words words[kVecs];
#pragma GCC unroll 4
        for (size_t v = 0; v < kVecs; ++v) {
          words[v] = UnitWord<kBits>(codes + v * kLanes * 4, word);
        }
#pragma GCC unroll 4
        for (size_t part = 0; part < kWordCodes<kBits> / 4; ++part, k += 4) {
          Words quads[kVecs];
#pragma GCC unroll 4
          for (size_t v = 0; v < kVecs; ++v) {
            quads[v] = QuadsOf<kWordBits<kBits>>(words[v], static_cast<int>(part));
          }
#pragma GCC unroll 8
          for (size_t r = 0; r < kRows; ++r) {
            const Ints x = BroadcastQuad(left + r * depth + k);
#pragma GCC unroll 4
            for (size_t v = 0; v < kVecs; ++v) {
              sums[r][v] = AddQuads<kVnni>(quads[v], x, sums[r][v]);
            }
          }
        }
      }
    }
    Floats scales[kVecs], zeros[kVecs];
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) {
      const size_t place = columns.scales + g * kFewBitsStrip + v * kLanes;
      scales[v] = ScalesOf(w, place);
      zeros[v] = ZerosOf(w, place);
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      const size_t of_row = g * rows.stride + row + r;
      const Floats sum = hn::Set(d, rows.sums[of_row]), step = hn::Set(d, rows.steps[of_row]);
#pragma GCC unroll 4
      for (size_t v = 0; v < kVecs; ++v) {
        const Floats centered = hn::NegMulAdd(zeros[v], sum, hn::ConvertTo(d, sums[r][v]));
        totals[r][v] = hn::MulAdd(centered, hn::Mul(scales[v], step), totals[r][v]);
      }
    }
  }
  StoreTotals(totals, rows.output + row * kFewBitsStrip + first);
}

/// All blocks of kRows rows from `row` on; returns the first row that is left.
template <bool kVnni, size_t kBits, size_t kRows>
HWY_INLINE size_t RoundedBlocks(const FewBitsWeight& w, const RoundedRows& rows, size_t row) {
  constexpr size_t kVecs = kLanes == 1 ? 1 : kRows == 1 ? 4 : 2;
  for (size_t first = 0; first < kFewBitsStrip; first += kVecs * kLanes) {
    for (size_t r = row; r + kRows <= rows.rows; r += kRows) {
      MultiplyRounded<kVnni, kBits, kRows, kVecs>(w, rows, r, first);
    }
  }
  return row + (rows.rows - row) / kRows * kRows;
}

template <bool kVnni, size_t kBits>
void RoundedStrip(const FewBitsWeight& w, const RoundedRows& rows) {
  size_t row = 0;
  if constexpr (kMostRoundedRows == 8) row = RoundedBlocks<kVnni, kBits, 8>(w, rows, row);
  row = RoundedBlocks<kVnni, kBits, 4>(w, rows, row);
  RoundedBlocks<kVnni, kBits, 1>(w, rows, row);
}

template <bool kVnni>
void RoundedOfBits(const FewBitsWeight& w, const RoundedRows& rows) {
  if (w.bits == 2) return RoundedStrip<kVnni, 2>(w, rows);
  if (w.bits == 4) return RoundedStrip<kVnni, 4>(w, rows);
  if (w.bits == 5) return RoundedStrip<kVnni, 5>(w, rows);
  if (w.bits == 6) return RoundedStrip<kVnni, 6>(w, rows);
  RoundedStrip<kVnni, 8>(w, rows);
}

inline void Rounded(const FewBitsWeight& w, const RoundedRows& rows) {
  RoundedOfBits<false>(w, rows);
}

inline void RoundedWithVnni(const FewBitsWeight& w, const RoundedRows& rows) {
  RoundedOfBits<kHasVnniVersion>(w, rows);
}

/// A group of a row, as integers times a step: its largest magnitude / 127.
class RoundedGroup {
 public:
  HWY_INLINE RoundedGroup(const float* x, size_t count) : x_(x), count_(count) {
    const WordTag d;
    // Bits of magnitudes have their order, and those that are not finite are the largest.
    Words most = hn::Zero(d);
    for (size_t i = 0; i < count; i += kLanes) {
      most = hn::Max(most, hn::And(hn::BitCast(d, Load(i)), hn::Set(d, 0x7FFFFFFFu)));
    }
    const uint32_t bits = hn::ReduceMax(d, most);
    finite_ = bits < 0x7F800000u;
    const float largest = HWY_MAX(hwy::BitCastScalar<float>(bits), kSmallestLargest);
    step = finite_ ? largest / 127.0f : hwy::BitCastScalar<float>(0x7FC00000u);
    inverse_ = finite_ ? 127.0f / largest : 0.0f;
  }

  /// The integers from element `i` on, zeros after the last one; all are zeros if the step is NaN.
  HWY_INLINE Floats From(size_t i) const {
    const FloatTag d;
    if (!finite_ || i >= count_) return hn::Zero(d);
    return hn::Round(hn::Mul(Load(i), hn::Set(d, inverse_)));
  }

  float step;

 private:
  HWY_INLINE Floats Load(size_t i) const {
    return hn::LoadN(FloatTag(), x_ + i, HWY_MIN(kLanes, count_ - i));
  }

  const float* x_;
  size_t count_;
  bool finite_;
  float inverse_;
};

inline void Round(const float* row, size_t groups, size_t group, size_t padded,
                  int8_t* HWY_RESTRICT left, float* HWY_RESTRICT steps, float* HWY_RESTRICT sums,
                  size_t stride) {
  const hn::Rebind<int8_t, FloatTag> narrow;
  for (size_t g = 0; g < groups; ++g, row += group, left += padded) {
    const RoundedGroup rounded(row, group);
    steps[g * stride] = rounded.step;
    Floats sum = hn::Zero(FloatTag());
    for (size_t i = 0; i < group; i += kLanes) {
      const Floats integers = rounded.From(i);
      sum = hn::Add(sum, integers);
      hn::StoreN(hn::DemoteTo(narrow, hn::ConvertTo(IntTag(), integers)), narrow, left + i,
                 HWY_MIN(kLanes, group - i));
    }
    hwy::ZeroBytes(left + group, padded - group);
    sums[g * stride] = hn::ReduceSum(FloatTag(), sum);
  }
}

/// Stores a row with its bias, as T.
template <typename T>
void FinishRow(const float* HWY_RESTRICT row, const float* HWY_RESTRICT bias, size_t count,
               void* output) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  auto* out = static_cast<T*>(output);
  for (size_t i = 0; i < count; i += lanes) {
    const size_t n = HWY_MIN(lanes, count - i);
    Floats x = hn::LoadN(d, row + i, n);
    if (bias != nullptr) x = hn::Add(x, hn::LoadN(d, bias + i, n));
    StoreNarrowN(x, d, out + i, n);
  }
}

inline void Finish(const float* row, const float* bias, size_t count, DType dtype, void* output) {
  if (dtype == DType::kFloat16) return FinishRow<hwy::float16_t>(row, bias, count, output);
  if (dtype == DType::kBFloat16) return FinishRow<hwy::bfloat16_t>(row, bias, count, output);
  FinishRow<float>(row, bias, count, output);
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
