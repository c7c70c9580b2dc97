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
      : a_(a), rows_(a, item), s_(a, memory, !kIsWide<T>) {}

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
    W* panel = s_.query + row * a_.head_dim;
    HWY_ALIGN W lanes[kLanes];
    for (size_t lane = 0; lane < width; ++lane) {
      const bool present = row + lane < rows_.count;
      const T* in = rows_.query + (row + lane) * a_.head_dim;
      for (size_t i = 0; i < a_.head_dim; i += kLanes) {
        const size_t n = HWY_MIN(kLanes, a_.head_dim - i);
        const auto x = present ? LoadWideN(d, in + i, n) : hn::Zero(d);
        hn::Store(present ? hn::Mul(x, scale) : x, d, lanes);
        for (size_t j = 0; j < n; ++j) panel[(i + j) * width + lane] = lanes[j];
      }
    }
  }

  /// Widens rows of keys or values, or returns them where they are.
  const W* WidenRows(const T* in, size_t count, W* out) const {
    if constexpr (kIsWide<T>) {
      (void)count;
      (void)out;
      return in;
    } else {
      const hn::ScalableTag<W> d;
      size_t i = 0;
      for (; i + kLanes <= count; i += kLanes) hn::StoreU(LoadWide(d, in + i), d, out + i);
      if (i < count) hn::StoreN(LoadWideN(d, in + i, count - i), d, out + i, count - i);
      return out;
    }
  }

  void Step(size_t key, size_t count) {
    const W* keys = WidenRows(rows_.key + key * a_.head_dim, count * a_.head_dim, s_.keys);
    const W* values = WidenRows(rows_.value + key * a_.value_dim, count * a_.value_dim, s_.values);
    for (size_t row = 0; row < rows_.count; row += Width(row)) {
      switch (Vectors(row)) {
        case 1:
          StepPanel<1>(row, key, count, keys, values);
          break;
        case 2:
          StepPanel<2>(row, key, count, keys, values);
          break;
        case 3:
          if constexpr (kMaxVecs > 2) StepPanel<3>(row, key, count, keys, values);
          break;
        default:
          if constexpr (kMaxVecs > 2) StepPanel<4>(row, key, count, keys, values);
      }
    }
  }

  template <size_t kVecs>
  void StepPanel(size_t row, size_t key, size_t count, const W* keys, const W* values) {
    constexpr size_t kWidth = kVecs * kLanes;
    HWY_ALIGN W first[kWidth];
    HWY_ALIGN W last[kWidth];
    const bool partial = LaneRanges(row, kWidth, key, count, first, last);
    if (last[0] == W{-1}) return;
    Multiply<kVecs, false, W>(keys, count, a_.head_dim, 1, s_.query + row * a_.head_dim,
                              a_.head_dim, nullptr, s_.scores);
    if (a_.softcap > 0) CapScores(s_.scores, count * kWidth, static_cast<W>(a_.softcap));
    if (a_.mask.kind != MaskKind::kNone) {
      FillPanelBias(row, kWidth, key, count);
      ApplyBias(s_.scores, s_.bias, count * kWidth, a_.mask.kind == MaskKind::kBool);
    } else if (partial) {
      ApplyRange<kVecs>(s_.scores, count, first, last);
    }
    SoftmaxTile<kVecs>(s_.scores, count, s_.best + row, s_.total + row, s_.rescale);
    Multiply<kVecs, true, W>(values, a_.value_dim, 1, a_.value_dim, s_.scores, count, s_.rescale,
                             s_.output + row * a_.value_dim);
  }

  /// Ranges of a panel's rows counted from `key`, small enough to be exact in W. Returns whether
  /// some row does not attend to all of the tile; if none attends to any, last[0] is -1.
  bool LaneRanges(size_t row, size_t width, size_t key, size_t count, W* first, W* last) const {
    const auto start = static_cast<std::int64_t>(key);
    const auto end = static_cast<std::int64_t>(count);
    bool partial = false;
    bool any = false;
    for (size_t lane = 0; lane < width; ++lane) {
      first[lane] = 0;
      last[lane] = static_cast<W>(count);
      if (row + lane >= rows_.count) continue;
      const std::int64_t lane_first = s_.first_key[row + lane] - start;
      const std::int64_t lane_last = s_.last_key[row + lane] - start;
      partial = partial || lane_first > 0 || lane_last < end;
      any = any || (lane_first < end && lane_last > 0);
      first[lane] = static_cast<W>(HWY_MIN(HWY_MAX(lane_first, std::int64_t{0}), end));
      last[lane] = static_cast<W>(HWY_MIN(HWY_MAX(lane_last, std::int64_t{0}), end));
    }
    if (!any) last[0] = -1;
    return partial;
  }

  void FillPanelBias(size_t row, size_t width, size_t key, size_t count) {
    const AttentionMask& m = a_.mask;
    const size_t present = HWY_MIN(width, rows_.count - row);
    const bool one_head = rows_.Head(a_, row) == rows_.Head(a_, row + present - 1);
    if (m.query_stride == 0 && (m.head_stride == 0 || one_head)) {
      // One mask row for all lanes, as a padding mask has it.
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
    const W* panel = s_.output + row * a_.value_dim;
    HWY_ALIGN W lanes[kLanes];
    for (size_t lane = 0; lane < width && row + lane < rows_.count; ++lane) {
      const W total = s_.total[row + lane];
      const auto factor = hn::Set(d, total == 0 ? W{0} : W{1} / total);
      T* out = rows_.output + (row + lane) * a_.value_dim;
      for (size_t i = 0; i < a_.value_dim; i += kLanes) {
        const size_t n = HWY_MIN(kLanes, a_.value_dim - i);
        for (size_t j = 0; j < n; ++j) lanes[j] = panel[(i + j) * width + lane];
        for (size_t j = n; j < kLanes; ++j) lanes[j] = 0;
        StoreNarrowN(hn::Mul(hn::Load(d, lanes), factor), d, out + i, n);
      }
    }
  }

  const AttentionProblem& a_;
  const AttentionRows<T> rows_;
  const AttentionScratch<W> s_;
};

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
