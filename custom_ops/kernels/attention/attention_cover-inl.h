// Determines the keys of a tile to which a panel of rows attends. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_ATTENTION_COVER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_ATTENTION_COVER_INL_H_
#undef COREAI_KERNELS_ATTENTION_COVER_INL_H_
#else
#define COREAI_KERNELS_ATTENTION_COVER_INL_H_
#endif

#include "kernels/attention/attention_mask-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Keys of a tile to which rows of a panel attend: exactly those in [first, last), per vector of
/// rows, unless `partial`.
template <size_t kVecs>
struct Cover {
  size_t first[kVecs];
  size_t last[kVecs];
  bool partial;

  size_t First() const {
    size_t least = first[0];
    for (size_t v = 1; v < kVecs; ++v) least = HWY_MIN(least, first[v]);
    return least;
  }
  size_t Last() const {
    size_t most = last[0];
    for (size_t v = 1; v < kVecs; ++v) most = HWY_MAX(most, last[v]);
    return most;
  }
  void SetAll(size_t from, size_t until, bool part) {
    for (size_t v = 0; v < kVecs; ++v) {
      first[v] = from;
      last[v] = until;
    }
    partial = part;
  }
  /// Extends every range to whole blocks of keys.
  void Round(size_t block) {
    const size_t end = Last();
    for (size_t v = 0; v < kVecs; ++v) {
      if (first[v] >= last[v]) continue;
      first[v] = first[v] / block * block;
      last[v] = HWY_MIN((last[v] + block - 1) / block * block, end);
    }
  }
  /// Calls step(key, count, v, vecs) for runs of keys to which vectors [v, v + vecs) attend.
  template <class Step>
  void ForEachRun(const Step& step) const {
    const size_t end = Last();
    for (size_t key = First(), next; key < end; key = next) {
      size_t begin = kVecs, until = 0;
      next = end;
      for (size_t v = 0; v < kVecs; ++v) {
        if (first[v] >= last[v]) continue;
        if (first[v] > key) {
          next = HWY_MIN(next, first[v]);
        } else if (last[v] > key) {
          begin = HWY_MIN(begin, v);
          until = v + 1;
          next = HWY_MIN(next, last[v]);
        }
      }
      if (begin < until) step(key, next - key, begin, until - begin);
    }
  }
};

/// The cover of rows [row, row + kVecs * lanes) by position.
template <size_t kVecs, typename T, typename W>
Cover<kVecs> RangeCover(const AttentionRows<T>& rows, const AttentionScratch<W>& s, size_t row,
                        size_t lanes, size_t key, size_t count) {
  const auto start = static_cast<std::int64_t>(key);
  const auto end = static_cast<std::int64_t>(count);
  Cover<kVecs> cover;
  cover.SetAll(count, 0, false);
  for (size_t v = 0; v < kVecs; ++v) {
    std::int64_t first = end, last = 0, all_from = 0, all_until = end;
    const size_t from = row + v * lanes;
    for (size_t r = from; r < HWY_MIN(from + lanes, rows.count); ++r) {
      first = HWY_MIN(first, s.first_key[r] - start);
      last = HWY_MAX(last, s.last_key[r] - start);
      all_from = HWY_MAX(all_from, s.first_key[r] - start);
      all_until = HWY_MIN(all_until, s.last_key[r] - start);
    }
    cover.partial = cover.partial || all_from > 0 || all_until < end;
    first = HWY_MAX(first, std::int64_t{0});
    last = HWY_MIN(last, end);
    if (first >= last) continue;
    cover.first[v] = static_cast<size_t>(first);
    cover.last[v] = static_cast<size_t>(last);
  }
  return cover;
}

/// The same by a bool mask. Sets bits in s.attends if the cover is partial.
template <size_t kVecs, typename W>
Cover<kVecs> MaskCover(const AttentionProblem& a, const AttentionScratch<W>& s, size_t row,
                       size_t rows, size_t lanes, size_t key, size_t count) {
  const size_t present = HWY_MIN(kVecs * lanes, rows - row);
  const size_t different = OneMaskRow(s, row, present) ? 1 : present;
  Cover<kVecs> cover;
  bool any = false, all = true;
  for (size_t r = 0; r < different && (all || !any); ++r) {
    PrefetchMask(a, s, HWY_MIN(row + present + r, rows - 1), key, count);  // the next panel's
    const Attends attends = MaskAttends(a, s, row + r, key, count);
    any = any || attends.any;
    all = all && attends.all;
  }
  cover.SetAll(0, any ? count : 0, !all);
  if (!any || all) return cover;
  FillBits(a, s, row, present, key, count);
  for (size_t v = 0; v < kVecs; ++v) {
    const std::uint64_t mine = ((std::uint64_t{1} << lanes) - 1) << (v * lanes);
    while (cover.last[v] > 0 && (s.attends[cover.last[v] - 1] & mine) == 0) --cover.last[v];
    while (cover.first[v] < cover.last[v] && (s.attends[cover.first[v]] & mine) == 0) {
      ++cover.first[v];
    }
  }
  return cover;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
