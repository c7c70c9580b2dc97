// Attention for a tile of up to kTileRows rows, which lie in the lanes. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_ATTENTION_TILE_INL_H_
#undef COREAI_KERNELS_ATTENTION_TILE_INL_H_
#else
#define COREAI_KERNELS_ATTENTION_TILE_INL_H_
#endif

#include "kernels/attention_panel-inl.h"
#include "kernels/attention_rows-inl.h"
#include "simd/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// A tile's rows are cut into panels of up to kMaxVecs vectors; the panel that begins at row r has
/// its queries at query + r * head_dim and its sums at output + r * value_dim.
template <typename T>
class AttentionTile {
 public:
  using W = Wide<T>;

  AttentionTile(const AttentionProblem& a, size_t item, void* memory)
      : a_(a),
        rows_(a, item),
        s_(a, memory, !kIsWide<T>),
        key_stride_((a.head_dim + kKeyPack - 1) / kKeyPack * kKeyPack * kBlock) {}

  void Run() {
    const KeyRange range = SetRanges(a_, rows_, s_);
    for (size_t row = 0; row < kTileRows; ++row) {
      // Lanes without a row compute row 0's state from zero queries; they are never stored.
      StartSoftmax(a_, rows_, row < rows_.count ? row : 0, s_.best + row, s_.total + row);
    }
    hwy::ZeroBytes(s_.output, a_.value_dim * kTileRows * sizeof(W));
    for (size_t row = 0; row < rows_.count; row += Width(row)) PackQueries(row, Width(row));
    for (std::int64_t key = range.first; key < range.last; key += kTileKeys) {
      const auto left = static_cast<size_t>(range.last - key);
      Step(static_cast<size_t>(key), HWY_MIN(left, kTileKeys));
    }
    for (size_t row = 0; row < rows_.count; row += Width(row)) StoreRows(row, Width(row));
  }

 private:
  static constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<W>());

  size_t Vectors(size_t row) const {
    return HWY_MIN(kMaxVecs, (rows_.count - row + kLanes - 1) / kLanes);
  }
  size_t Width(size_t row) const { return Vectors(row) * kLanes; }

  /// Transposes the scaled queries of a panel: [head_dim, width].
  void PackQueries(size_t row, size_t width) {
    const hn::ScalableTag<W> d;
    const auto scale = hn::Set(d, static_cast<W>(a_.scale));
    hn::Vec<decltype(d)> x[kLanes];
    for (size_t group = 0; group < width; group += kLanes) {
      const T* in = rows_.query + (row + group) * a_.head_dim;
      W* out = s_.query + row * a_.head_dim + group;
      for (size_t i = 0; i < a_.head_dim; i += kLanes) {
        const size_t n = HWY_MIN(kLanes, a_.head_dim - i);
        for (size_t lane = 0; lane < kLanes; ++lane) {
          const bool present = row + group + lane < rows_.count;
          x[lane] =
              present ? hn::Mul(LoadWideN(d, in + lane * a_.head_dim + i, n), scale) : hn::Zero(d);
        }
        Transpose(d, x);
        for (size_t j = 0; j < n; ++j) hn::Store(x[j], d, out + (i + j) * width);
      }
    }
  }

  /// Brings a tile's keys into blocks of kBlock, in the type computed in.
  void PackKeys(const T* HWY_RESTRICT in, size_t count) {
    const hn::ScalableTag<W> d;
    for (size_t key = 0; key < count; ++key, in += a_.head_dim) {
      W* out = s_.keys + key / kBlock * key_stride_ + key % kBlock * kKeyPack;
      size_t i = 0;
      for (; i + kKeyPack <= a_.head_dim; i += kKeyPack, out += kBlock * kKeyPack) {
        for (size_t lane = 0; lane < kKeyPack; lane += kLanes) {
          hn::Store(LoadWide(d, in + i + lane), d, out + lane);
        }
      }
      for (size_t lane = 0; i + lane < a_.head_dim; lane += kLanes) {
        const size_t n = HWY_MIN(kLanes, a_.head_dim - i - lane);
        hn::Store(LoadWideN(d, in + i + lane, n), d, out + lane);
      }
    }
  }

  /// Widens a tile's values, or returns them where they are.
  const W* WidenValues(const T* in, size_t count) const {
    if constexpr (kIsWide<T>) {
      (void)count;
      return in;
    } else {
      const hn::ScalableTag<W> d;
      size_t i = 0;
      for (; i + kLanes <= count; i += kLanes) {
        hn::StoreU(LoadWide(d, in + i), d, s_.values + i);
      }
      if (i < count) hn::StoreN(LoadWideN(d, in + i, count - i), d, s_.values + i, count - i);
      return s_.values;
    }
  }

  void Step(size_t key, size_t count) {
    PackKeys(rows_.key + key * a_.head_dim, count);
    const W* values = WidenValues(rows_.value + key * a_.value_dim, count * a_.value_dim);
    for (size_t row = 0; row < rows_.count; row += Width(row)) {
      if (Vectors(row) == 1) {
        StepPanel<1>(row, key, count, values);
      } else {
        StepPanel<2>(row, key, count, values);
      }
    }
  }

  /// Keys of a tile that some row of a panel attends to, and whether another row does not.
  struct Cover {
    size_t first;
    size_t last;
    bool partial;
  };

  template <size_t kVecs>
  void StepPanel(size_t row, size_t key, size_t count, const W* values) {
    constexpr size_t kWidth = kVecs * kLanes;
    static_assert(kVecs <= kMaxVecs && kWidth <= kMaxPanelRows, "the scratch memory's sizes");
    const bool bits = a_.mask.kind == MaskKind::kBool;
    const bool bias = a_.mask.kind != MaskKind::kNone && !bits;
    const Cover cover = bits   ? MaskCover(row, kWidth, key, count)
                        : bias ? Cover{0, count, true}
                               : RangeCover(row, kWidth, key, count);
    if (cover.first >= cover.last) return;
    const size_t block = cover.first / kBlock;
    const size_t from = block * kBlock;
    const size_t keys = cover.last - from;
    Multiply<kVecs, false>(Packed<W>{s_.keys + block * key_stride_, key_stride_}, keys,
                           s_.query + row * a_.head_dim, a_.head_dim,
                           static_cast<const W*>(nullptr), s_.scores);
    if (a_.softcap > 0) CapScores(s_.scores, keys * kWidth, static_cast<W>(a_.softcap));
    if (bias) {
      FillPanelBias(row, kWidth, key, count);
      ApplyBias(s_.scores, s_.bias, count * kWidth, false);
    } else if (cover.partial && bits) {
      ApplyBits<kVecs>(s_.scores, keys, s_.attends + from);
    } else if (cover.partial || from < cover.first) {
      HWY_ALIGN W first[kWidth];
      HWY_ALIGN W last[kWidth];
      LaneRanges(row, kWidth, key + from, keys, first, last);
      ApplyRange<kVecs>(s_.scores, keys, first, last);
    }
    SoftmaxTile<kVecs>(s_.scores, keys, s_.best + row, s_.total + row, s_.rescale);
    Multiply<kVecs, true>(Columns<W>{values + from * a_.value_dim, a_.value_dim}, a_.value_dim,
                          s_.scores, keys, s_.rescale, s_.output + row * a_.value_dim);
  }

  Cover RangeCover(size_t row, size_t width, size_t key, size_t count) const {
    const auto start = static_cast<std::int64_t>(key);
    const auto end = static_cast<std::int64_t>(count);
    std::int64_t first = end, last = 0, all_from = 0, all_until = end;
    for (size_t r = row; r < HWY_MIN(row + width, rows_.count); ++r) {
      first = HWY_MIN(first, s_.first_key[r] - start);
      last = HWY_MAX(last, s_.last_key[r] - start);
      all_from = HWY_MAX(all_from, s_.first_key[r] - start);
      all_until = HWY_MIN(all_until, s_.last_key[r] - start);
    }
    first = HWY_MAX(first, std::int64_t{0});
    last = HWY_MIN(last, end);
    if (first >= last) return {0, 0, false};
    return {static_cast<size_t>(first), static_cast<size_t>(last),
            all_from > first || all_until < last};
  }

  /// Ranges of a panel's rows counted from `key`, small enough to be exact in W. Lanes without a
  /// row attend to all.
  void LaneRanges(size_t row, size_t width, size_t key, size_t count, W* first, W* last) const {
    const auto start = static_cast<std::int64_t>(key);
    const auto end = static_cast<std::int64_t>(count);
    for (size_t lane = 0; lane < width; ++lane) {
      first[lane] = 0;
      last[lane] = static_cast<W>(count);
      if (row + lane >= rows_.count) continue;
      const std::int64_t lane_first = s_.first_key[row + lane] - start;
      const std::int64_t lane_last = s_.last_key[row + lane] - start;
      first[lane] = static_cast<W>(HWY_MIN(HWY_MAX(lane_first, std::int64_t{0}), end));
      last[lane] = static_cast<W>(HWY_MIN(HWY_MAX(lane_last, std::int64_t{0}), end));
    }
  }

  Cover MaskCover(size_t row, size_t width, size_t key, size_t count) {
    const size_t present = HWY_MIN(width, rows_.count - row);
    FillBits(a_, rows_, row, present, key, count, s_.attends);
    const std::uint32_t all = ~std::uint32_t{0} >> (32 - present);
    Cover cover = {0, count, false};
    while (cover.last > 0 && s_.attends[cover.last - 1] == 0) --cover.last;
    while (cover.first < cover.last && s_.attends[cover.first] == 0) ++cover.first;
    // The block that the first key is in is computed from its start.
    for (size_t k = cover.first / kBlock * kBlock; k < cover.last; ++k) {
      cover.partial = cover.partial || s_.attends[k] != all;
    }
    return cover;
  }

  void FillPanelBias(size_t row, size_t width, size_t key, size_t count) {
    const size_t present = HWY_MIN(width, rows_.count - row);
    if (OneMaskRow(a_, rows_, row, present)) {
      // As a padding mask has it.
      HWY_ALIGN W shared[kTileKeys];
      FillBias(a_, rows_, row, key, count, shared, 1);
      const hn::ScalableTag<W> d;
      for (size_t k = 0; k < count; ++k) {
        for (size_t lane = 0; lane < width; lane += kLanes) {
          hn::Store(hn::Set(d, shared[k]), d, s_.bias + k * width + lane);
        }
      }
      return;
    }
    if (present < width) hwy::ZeroBytes(s_.bias, count * width * sizeof(W));
    for (size_t lane = 0; lane < present; ++lane) {
      FillBias(a_, rows_, row + lane, key, count, s_.bias + lane, width);
    }
  }

  /// Divides the sums of a panel by the rows' totals and stores them row by row.
  void StoreRows(size_t row, size_t width) {
    const hn::ScalableTag<W> d;
    hn::Vec<decltype(d)> x[kLanes];
    for (size_t group = 0; group < width; group += kLanes) {
      const auto total = hn::Load(d, s_.total + row + group);
      const auto factor =
          hn::IfThenZeroElse(hn::Eq(total, hn::Zero(d)), hn::Div(hn::Set(d, W{1}), total));
      const size_t rows = rows_.count - row - HWY_MIN(group, rows_.count - row);
      const W* in = s_.output + row * a_.value_dim + group;
      T* out = rows_.output + (row + group) * a_.value_dim;
      for (size_t i = 0; i < a_.value_dim; i += kLanes) {
        const size_t n = HWY_MIN(kLanes, a_.value_dim - i);
        for (size_t j = 0; j < kLanes; ++j) {
          x[j] = j < n ? hn::Mul(hn::Load(d, in + (i + j) * width), factor) : hn::Zero(d);
        }
        Transpose(d, x);
        for (size_t lane = 0; lane < HWY_MIN(kLanes, rows); ++lane) {
          StoreNarrowN(x[lane], d, out + lane * a_.value_dim + i, n);
        }
      }
    }
  }

  const AttentionProblem& a_;
  const AttentionRows<T> rows_;
  const AttentionScratch<W> s_;
  const size_t key_stride_;  // from one block of keys to the next
};

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
