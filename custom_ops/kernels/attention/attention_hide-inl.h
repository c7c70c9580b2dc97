// Which keys of a tile a panel attends to, and softcap and masks of its scores. Included once per
// target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_ATTENTION_HIDE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_ATTENTION_HIDE_INL_H_
#undef COREAI_KERNELS_ATTENTION_HIDE_INL_H_
#else
#define COREAI_KERNELS_ATTENTION_HIDE_INL_H_
#endif

#include "kernels/attention/attention_cover-inl.h"
#include "kernels/attention/attention_panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Whether the mask is added to the scores.
inline bool HasBias(const AttentionProblem& a) {
  return a.mask.kind == MaskKind::kOwn || a.mask.kind == MaskKind::kWide;
}

/// The keys of tile [key, key + count) to which the panel of kVecs vectors at `row` attends. Sets
/// bits in s.attends if the mask is bool and the cover is partial.
template <size_t kVecs, typename T, typename W>
Cover<kVecs> CoverPanel(const AttentionProblem& a, const AttentionRows<T>& rows,
                        const AttentionScratch<W>& s, size_t row, size_t key, size_t count) {
  constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<W>());
  if (a.mask.kind == MaskKind::kBool) {
    return MaskCover<kVecs>(a, s, row, rows.count, kLanes, key, count);
  }
  if (!HasBias(a)) return RangeCover<kVecs>(rows, s, row, kLanes, key, count);
  Cover<kVecs> cover;
  cover.SetAll(0, count, true);
  return cover;
}

/// Key ranges of a panel's rows relative to `key`, clamped to be exact in W. Lanes without a row
/// attend to all keys.
template <typename T, typename W>
void LaneRanges(const AttentionRows<T>& rows, const AttentionScratch<W>& s, size_t row,
                size_t width, size_t key, size_t count, W* first, W* last) {
  const auto start = static_cast<std::int64_t>(key);
  const auto end = static_cast<std::int64_t>(count);
  for (size_t lane = 0; lane < width; ++lane) {
    first[lane] = 0;
    last[lane] = static_cast<W>(count);
    if (row + lane >= rows.count) continue;
    const std::int64_t lane_first = s.first_key[row + lane] - start;
    const std::int64_t lane_last = s.last_key[row + lane] - start;
    first[lane] = static_cast<W>(HWY_MIN(HWY_MAX(lane_first, std::int64_t{0}), end));
    last[lane] = static_cast<W>(HWY_MIN(HWY_MAX(lane_last, std::int64_t{0}), end));
  }
}

/// Writes the mask of a panel to s.bias: [count, width].
template <typename T, typename W>
void FillPanelBias(const AttentionProblem& a, const AttentionRows<T>& rows,
                   const AttentionScratch<W>& s, size_t row, size_t width, size_t key,
                   size_t count) {
  const size_t present = HWY_MIN(width, rows.count - row);
  if (OneMaskRow(s, row, present)) {
    // The usual form of a padding mask.
    HWY_ALIGN W shared[kMaxTileKeys];
    FillBias<T>(a, s, row, key, count, shared, 1);
    const hn::ScalableTag<W> d;
    for (size_t k = 0; k < count; ++k) {
      for (size_t lane = 0; lane < width; lane += hn::Lanes(d)) {
        hn::Store(hn::Set(d, shared[k]), d, s.bias + k * width + lane);
      }
    }
    return;
  }
  if (present < width) hwy::ZeroBytes(s.bias, count * width * sizeof(W));
  for (size_t lane = 0; lane < present; ++lane) {
    FillBias<T>(a, s, row + lane, key, count, s.bias + lane, width);
  }
}

/// Applies softcap and mask to the scores of the covered keys of a tile, [keys, width].
template <size_t kVecs, typename T, typename W>
void HideScores(const AttentionProblem& a, const AttentionRows<T>& rows,
                const AttentionScratch<W>& s, const Cover<kVecs>& cover, size_t row, size_t key,
                size_t count, W* scores) {
  constexpr size_t kWidth = kVecs * hn::MaxLanes(hn::ScalableTag<W>());
  const size_t from = cover.First();
  const size_t keys = cover.Last() - from;
  if (a.softcap > 0) CapScores(scores, keys * kWidth, static_cast<W>(a.softcap));
  if (HasBias(a)) {
    FillPanelBias(a, rows, s, row, kWidth, key, count);
    ApplyBias(scores, s.bias, count * kWidth, false);
  } else if (!cover.partial) {
    return;
  } else if (a.mask.kind == MaskKind::kBool) {
    ApplyBits<kVecs>(scores, keys, s.attends + from);
  } else {
    HWY_ALIGN W first[kWidth];
    HWY_ALIGN W last[kWidth];
    LaneRanges(rows, s, row, kWidth, key + from, keys, first, last);
    // All rows attend to the keys in between.
    W all_from = 0, all_until = static_cast<W>(keys);
    for (size_t lane = 0; lane < kWidth; ++lane) {
      all_from = HWY_MAX(all_from, first[lane]);
      all_until = HWY_MIN(all_until, last[lane]);
    }
    const auto begin = static_cast<size_t>(all_from), end = static_cast<size_t>(all_until);
    ApplyRange<kVecs>(scores, 0, begin, first, last);
    ApplyRange<kVecs>(scores, HWY_MAX(begin, end), keys, first, last);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
