// Attention for a few rows, as in decoding: lanes run along head_dim, and each key and value is
// read once for all rows. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_ATTENTION_FEW_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_ATTENTION_FEW_ROWS_INL_H_
#undef COREAI_KERNELS_ATTENTION_FEW_ROWS_INL_H_
#else
#define COREAI_KERNELS_ATTENTION_FEW_ROWS_INL_H_
#endif

#include "kernels/attention/attention_mask-inl.h"
#include "kernels/attention/attention_panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// kRows is 1, 2, 4 or 8; rows beyond the item's are computed from zero queries and not stored.
template <typename T, size_t kRows, class Stored = AttentionFloats<T>>
class AttentionFew {
 public:
  using W = Wide<T>;
  using E = typename Stored::E;

  AttentionFew(const AttentionProblem& a, size_t item, void* memory)
      : a_(a), rows_(a, item), stored_(a, rows_), s_(a, memory) {}

  void Run() {
    const KeyRange range = Attended(SetRows(a_, rows_, s_));
    ScaleQueries();
    hwy::ZeroBytes(s_.output, a_.value_dim * kRows * sizeof(W));
    for (size_t row = 0; row < kRows; ++row) {
      StartSoftmax(a_, rows_, HWY_MIN(row, rows_.count - 1), s_.best + row, s_.total + row);
    }
    for (std::int64_t key = range.first; key < range.last; key += kFewKeys) {
      const auto left = static_cast<size_t>(range.last - key);
      Step(static_cast<size_t>(key), HWY_MIN(left, kFewKeys));
    }
    StoreRows();
  }

 private:
  static constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<W>());
  // Block sizes of the sums in registers: keys x rows, and vectors of a value x rows.
#if HWY_TARGET == HWY_AVX2
  static constexpr size_t kSums = 8;
#else
  static constexpr size_t kSums = 16;
#endif
  static constexpr size_t kScoreKeys = HWY_MIN(kSums / kRows, size_t{4});
  static constexpr size_t kValueVecs = HWY_MIN(kSums / kRows, size_t{8});

  /// The keys between the first and the last one to which a bool mask lets a row attend: a row in
  /// blocks has fewer tokens than the longest one, or those of a window.
  KeyRange Attended(KeyRange range) const {
    if (a_.mask.kind != MaskKind::kBool || a_.mask.key_stride == 0) return range;
    KeyRange attended = {range.last, range.first};
    for (size_t row = 0; row < rows_.count; ++row) {
      if (row > 0 && s_.mask_at[row] == s_.mask_at[row - 1]) continue;
      const std::uint8_t* line = MaskLine(a_, s_, row, 0);
      KeyRange own = range;
      while (own.first < own.last && line[own.first] == 0) ++own.first;
      while (own.last > own.first && line[own.last - 1] == 0) --own.last;
      attended.first = HWY_MIN(attended.first, own.first);
      attended.last = HWY_MAX(attended.last, own.last);
    }
    return attended;
  }

  void ScaleQueries() {
    const hn::ScalableTag<W> d;
    const auto scale = hn::Set(d, static_cast<W>(a_.scale));
    hwy::ZeroBytes(s_.query, kRows * a_.head_dim * sizeof(W));
    for (size_t row = 0; row < rows_.count; ++row) {
      const T* in = rows_.query + row * rows_.query_step;
      W* out = s_.query + row * a_.head_dim;
      for (size_t i = 0; i < a_.head_dim; i += kLanes) {
        const size_t n = HWY_MIN(kLanes, a_.head_dim - i);
        hn::StoreN(hn::Mul(LoadWideN(d, in + i, n), scale), d, out + i, n);
      }
    }
  }

  void Step(size_t key, size_t count) {
    size_t k = 0;
    for (; k + kScoreKeys <= count; k += kScoreKeys) Score<kScoreKeys>(key + k, k);
    for (; k < count; ++k) Score<1>(key + k, k);
    const size_t padded = (count + kLanes - 1) / kLanes * kLanes;
    for (size_t row = 0; row < kRows; ++row) {
      W* scores = s_.scores + row * kFewKeys;
      for (k = count; k < padded; ++k) scores[k] = 0;
      if (a_.softcap > 0) CapScores(scores, padded, static_cast<W>(a_.softcap));
      if (row < rows_.count) Hide(row, key, count, padded, scores);
      for (k = count; k < padded; ++k) scores[k] = Hidden();
      SoftmaxRow(row, padded, scores);
    }
    if constexpr (Stored::kCodes) {
      for (k = 0; k < count; ++k) {
        const W scale = Stored::Scale(stored_.value_scales, key + k);
        for (size_t row = 0; row < kRows; ++row) s_.scores[row * kFewKeys + k] *= scale;
      }
    }
    AddValues(key, count);
  }

  static W Hidden() { return static_cast<W>(-__builtin_huge_val()); }

  /// Prefetches lanes of a row of keys or values that is read later, so that memory accesses and
  /// computation overlap: few at a time, because many wait for each other.
  HWY_INLINE void Prefetch(const E* row, size_t first, size_t last) const {
    const auto* bytes = reinterpret_cast<const char*>(row);
    for (size_t i = Stored::Bytes(first); i < Stored::Bytes(last); i += 64) {
      __builtin_prefetch(bytes + i, 0, 2);
    }
  }

  /// scores[row, k + j] = query[row] . key[key + j], for all rows and kKeys keys.
  template <size_t kKeys>
  HWY_INLINE void Score(size_t key, size_t k) {
    const hn::ScalableTag<W> d;
    const E* keys[kKeys];
    const E* values[kKeys];
    stored_.key.Rows(key, keys);
    stored_.value.Rows(key, values);
    hn::Vec<decltype(d)> sums[kKeys][kRows];
#pragma GCC unroll 8
    for (size_t j = 0; j < kKeys; ++j) {
#pragma GCC unroll 8
      for (size_t row = 0; row < kRows; ++row) sums[j][row] = hn::Zero(d);
    }
    size_t i = 0;
    for (; i + kLanes <= a_.head_dim; i += kLanes) {
      hn::Vec<decltype(d)> x[kKeys];
#pragma GCC unroll 8
      for (size_t j = 0; j < kKeys; ++j) {
        Prefetch(values[j], i, HWY_MIN(i + kLanes, a_.value_dim));
        x[j] = Stored::Load(d, keys[j], i, a_.head_dim);
      }
#pragma GCC unroll 8
      for (size_t row = 0; row < kRows; ++row) {
        const auto q = hn::LoadU(d, s_.query + row * a_.head_dim + i);
#pragma GCC unroll 8
        for (size_t j = 0; j < kKeys; ++j) sums[j][row] = hn::MulAdd(x[j], q, sums[j][row]);
      }
    }
    for (size_t j = 0; j < kKeys; ++j) Prefetch(values[j], i, a_.value_dim);
    if (const size_t n = a_.head_dim - i; n != 0) {
#pragma GCC unroll 8
      for (size_t j = 0; j < kKeys; ++j) {
        const auto x = Stored::LoadN(d, keys[j], i, a_.head_dim, n);
#pragma GCC unroll 8
        for (size_t row = 0; row < kRows; ++row) {
          const auto q = hn::LoadN(d, s_.query + row * a_.head_dim + i, n);
          sums[j][row] = hn::MulAdd(x, q, sums[j][row]);
        }
      }
    }
#if HWY_TARGET != HWY_SCALAR
    if constexpr (!Stored::kCodes && kRows == 4 && kKeys == 4 && kLanes == 16) {
      return StoreSums(sums, k);
    }
#endif
#pragma GCC unroll 8
    for (size_t row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
      for (size_t j = 0; j < kKeys; ++j) {
        W score = hn::ReduceSum(d, sums[j][row]);
        if constexpr (Stored::kCodes) score *= Stored::Scale(stored_.key_scales, key + j);
        s_.scores[row * kFewKeys + k + j] = score;
      }
    }
  }

#if HWY_TARGET != HWY_SCALAR
  /// Reduces the sums of four keys and four rows together, in half of the operations of ReduceSum,
  /// and in its order: halves of a vector are added until one lane is left.
  template <class V>
  HWY_INLINE void StoreSums(const V (&sums)[4][4], size_t k) {
    const hn::ScalableTag<W> d;
    const hn::Repartition<std::uint64_t, decltype(d)> wide;
    const auto halves = [&](V a, V b) HWY_ATTR {
      return hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
    };
    V keys[4];  // a block of four lanes for each row
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) {
      const V even = halves(sums[j][0], sums[j][2]), odd = halves(sums[j][1], sums[j][3]);
      keys[j] = hn::OddEvenBlocks(hn::Add(odd, hn::SwapAdjacentBlocks(odd)),
                                  hn::Add(even, hn::SwapAdjacentBlocks(even)));
    }
    const auto pairs = [&](V a, V b) HWY_ATTR {
      const auto x = hn::BitCast(wide, a), y = hn::BitCast(wide, b);
      const V sum = hn::Add(hn::BitCast(d, hn::InterleaveLower(wide, x, y)),
                            hn::BitCast(d, hn::InterleaveUpper(wide, x, y)));
      return hn::Add(sum, hn::Shuffle2301(sum));
    };
    const V scores = hn::OddEven(pairs(keys[1], keys[3]), pairs(keys[0], keys[2]));
    const hn::BlockDFromD<decltype(d)> block;
    hn::StoreU(hn::ExtractBlock<0>(scores), block, s_.scores + k);
    hn::StoreU(hn::ExtractBlock<1>(scores), block, s_.scores + kFewKeys + k);
    hn::StoreU(hn::ExtractBlock<2>(scores), block, s_.scores + 2 * kFewKeys + k);
    hn::StoreU(hn::ExtractBlock<3>(scores), block, s_.scores + 3 * kFewKeys + k);
  }
#endif

  /// Applies the mask, or the row's range, to its scores.
  void Hide(size_t row, size_t key, size_t count, size_t padded, W* scores) {
    if (a_.mask.kind != MaskKind::kNone) {
      for (size_t k = count; k < padded; ++k) s_.bias[k] = 0;
      FillBias<T>(a_, s_, row, key, count, s_.bias, 1);
      ApplyBias(scores, s_.bias, padded, a_.mask.kind == MaskKind::kBool);
      return;
    }
    const auto start = static_cast<std::int64_t>(key);
    for (std::int64_t k = start; k < HWY_MIN(s_.first_key[row], start + std::int64_t(count)); ++k) {
      scores[k - start] = Hidden();
    }
    for (std::int64_t k = HWY_MAX(s_.last_key[row], start); k < start + std::int64_t(count); ++k) {
      scores[k - start] = Hidden();
    }
  }

  /// SoftmaxTile for one row with its scores along the lanes.
  void SoftmaxRow(size_t row, size_t padded, W* HWY_RESTRICT scores) {
    const hn::ScalableTag<W> d;
    auto top = hn::Set(d, s_.best[row]);
    for (size_t k = 0; k < padded; k += kLanes) top = hn::Max(top, hn::Load(d, scores + k));
    const W old = s_.best[row];
    const W best = hn::ReduceMax(d, top);
    s_.best[row] = best;
    const auto subtract = hn::Set(d, best == Hidden() ? W{0} : best);
    auto sum = hn::Zero(d);
    for (size_t k = 0; k < padded; k += kLanes) {
      const auto e = ExpNonPositive(d, hn::Sub(hn::Load(d, scores + k), subtract));
      hn::Store(e, d, scores + k);
      sum = hn::Add(sum, e);
    }
    s_.rescale[row] = hn::GetLane(ExpNonPositive(d, hn::Sub(hn::Set(d, old), subtract)));
    s_.total[row] = s_.total[row] * s_.rescale[row] + hn::ReduceSum(d, sum);
  }

  /// output = output * rescale + scores * values.
  void AddValues(size_t key, size_t count) {
    size_t column = 0;
    for (; column + kValueVecs * kLanes <= a_.value_dim; column += kValueVecs * kLanes) {
      AddColumns<kValueVecs, false>(key, count, column, 0);
    }
    for (; column + kLanes <= a_.value_dim; column += kLanes) {
      AddColumns<1, false>(key, count, column, 0);
    }
    if (column < a_.value_dim) {
      AddColumns<1, true>(key, count, column, a_.value_dim - column);
    }
  }

  template <size_t kVecs, bool kTail>
  HWY_INLINE void AddColumns(size_t key, size_t count, size_t column, size_t n) {
    const hn::ScalableTag<W> d;
    hn::Vec<decltype(d)> sums[kRows][kVecs];
#pragma GCC unroll 8
    for (size_t row = 0; row < kRows; ++row) {
      const W* out = s_.output + row * a_.value_dim + column;
      const auto factor = hn::Set(d, s_.rescale[row]);
#pragma GCC unroll 8
      for (size_t v = 0; v < kVecs; ++v) {
        const auto x = kTail ? hn::LoadN(d, out, n) : hn::LoadU(d, out + v * kLanes);
        sums[row][v] = hn::Mul(x, factor);
      }
    }
    const size_t end = column + kVecs * kLanes;
    const size_t ahead = end < a_.value_dim ? HWY_MIN(end, a_.head_dim) : a_.head_dim;
    const E* HWY_RESTRICT value = nullptr;
    for (size_t k = 0, run = 0; k < count; ++k, value += stored_.value.stride()) {
      if (k == run) {
        value = stored_.value[key + k];
        run = count - k < stored_.value.Run(key + k) ? count : k + stored_.value.Run(key + k);
      }
      if (key + kFewKeys + k < a_.keys) {
        Prefetch(stored_.key[key + kFewKeys + k], column, ahead);
      }
      hn::Vec<decltype(d)> x[kVecs];
#pragma GCC unroll 8
      for (size_t v = 0; v < kVecs; ++v) {
        const size_t i = column + v * kLanes;
        x[v] = kTail ? Stored::LoadN(d, value, i, a_.value_dim, n)
                     : Stored::Load(d, value, i, a_.value_dim);
      }
#pragma GCC unroll 8
      for (size_t row = 0; row < kRows; ++row) {
        const auto weight = hn::Set(d, s_.scores[row * kFewKeys + k]);
#pragma GCC unroll 8
        for (size_t v = 0; v < kVecs; ++v) sums[row][v] = hn::MulAdd(weight, x[v], sums[row][v]);
      }
    }
#pragma GCC unroll 8
    for (size_t row = 0; row < kRows; ++row) {
      W* out = s_.output + row * a_.value_dim + column;
#pragma GCC unroll 8
      for (size_t v = 0; v < kVecs; ++v) {
        if constexpr (kTail) {
          hn::StoreN(sums[row][v], d, out, n);
        } else {
          hn::StoreU(sums[row][v], d, out + v * kLanes);
        }
      }
    }
  }

  void StoreRows() {
    const hn::ScalableTag<W> d;
    for (size_t row = 0; row < rows_.count; ++row) {
      const W total = s_.total[row];
      const auto factor = hn::Set(d, total == 0 ? W{0} : W{1} / total);
      const W* in = s_.output + row * a_.value_dim;
      T* out = rows_.output + row * rows_.output_step;
      for (size_t i = 0; i < a_.value_dim; i += kLanes) {
        const size_t n = HWY_MIN(kLanes, a_.value_dim - i);
        StoreNarrowN(hn::Mul(hn::LoadN(d, in + i, n), factor), d, out + i, n);
      }
    }
  }

  const AttentionProblem& a_;
  const AttentionRows<T> rows_;
  const Stored stored_;
  const AttentionScratch<W> s_;
};

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
