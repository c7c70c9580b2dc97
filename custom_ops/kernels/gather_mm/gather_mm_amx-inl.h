// Products of bfloat16 and of float16 by tile registers. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATHER_MM_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATHER_MM_AMX_INL_H_
#undef COREAI_KERNELS_GATHER_MM_AMX_INL_H_
#else
#define COREAI_KERNELS_GATHER_MM_AMX_INL_H_
#endif

#include "kernels/gather_mm/gather_mm_amx_few_rows-inl.h"
#include "kernels/gather_mm/gather_mm_amx_pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Multiplies blocks of two by two tiles. Two tiles of columns and kDepth tiles of the depth are in
/// the first-level cache while all rows, in the second-level cache, are multiplied by them. Rows of
/// more than kSpan tiles of the depth are processed in spans, for a group of columns each, whose
/// sums are in the second-level cache as well.
template <class Tiles, typename T, GatherMmLayout kLayout>
class AmxProduct {
 public:
  AmxProduct(const GatherMmTile& t, void* scratch)
      : t_(t),
        steps_(AmxSteps(t.depth)),
        group_(!kPacked          ? kGroup
               : steps_ <= kSpan ? kAmxPair
                                 : kPackedGroup),
        last_(static_cast<float*>(scratch)),
        again_(last_ + kAmxPair * kAmxPair),
        split_(reinterpret_cast<std::uint32_t*>(again_ + kFewColumns)),
        sums_(reinterpret_cast<float*>(split_ + kSplitTiles * kAmxWords)),
        panel_(reinterpret_cast<std::uint32_t*>(sums_ + kGroup * kGatherMmMaxTileRows)) {
    constexpr size_t kBegin = kAmxPair * kAmxPair + kFewColumns + kSplitTiles * kAmxWords;
    constexpr size_t kPanel = kGroup / kAmxColumns * kSpan * kAmxWords;
    static_assert(
        (kBegin + kGatherMmMaxTileRows * kPackedGroup) * 4 <= kGatherMmScratchBytes &&
            (kBegin + kGatherMmMaxTileRows * kGroup + kPanel) * 4 <= kGatherMmScratchBytes,
        "scratch is too small");
  }

  void Run() {
    for (size_t column = t_.first_column; column < t_.last_column; column += group_) {
      const size_t end = HWY_MIN(column + group_, t_.last_column);
      for (size_t step = 0; step < steps_; step += kSpan) {
        const AmxRange range = {column, end, step, HWY_MIN(step + kSpan, steps_)};
        if constexpr (!kPacked) {
          PackAmxRightRange<kLayout == GatherMmLayout::kTransposed>(t_.right, t_.depth, t_.columns,
                                                                    range, panel_);
          halves_.from = nullptr;  // which was another part of the matrix
        }
        MultiplyRange(range);
      }
    }
    StoreRows(pending_.rows);
  }

 private:
  static constexpr bool kPacked = kLayout == GatherMmLayout::kPacked;
  static constexpr size_t kParts = kAmxParts<T>;
  // Tiles of the depth of a block. With 12 and with 20 instead of 16, bfloat16 took longer (256 to
  // 1024 rows, 2026-11; docs/internals/performance_log.md).
  static constexpr size_t kDepth = kParts == 2 ? 4 : 16;
  static constexpr size_t kSpan = 32;
  static constexpr size_t kPackedGroup = 512;  // columns
  static constexpr size_t kGroup = 128;        // of a matrix that is packed on the way
  static constexpr size_t kSplitTiles = kParts == 2 ? 2 * 4 * kDepth : 0;  // twice

  /// Sums that are complete, but not stored yet: rows of the pair of tiles at `column`.
  struct Pending {
    size_t first_row, column;
    size_t row = 0, rows = 0;
  };
  /// Columns and step of the depth of the tiles that are multiplied by all rows.
  struct Place {
    size_t column, step;
  };
  /// Tiles of float16 and the place of their parts.
  struct Halves {
    const std::uint32_t* from;
    std::uint32_t* to;
    size_t tiles, rights, done, tiles_per_step;
  };
  /// Lines to prefetch into the second-level cache.
  struct Ahead {
    const char* next;
    size_t lines, lines_per_step;
  };

  void MultiplyRange(const AmxRange& range) {
    for (size_t c = range.column; c < range.end_column; c += kAmxPair) {
      for (size_t step = range.step; step < range.end_step; step += kDepth) {
        const Place place = {c, step};
        const std::uint32_t* right = RightAt(range, place);
        if constexpr (kParts == 2) right = SplitNow(right, place);
        LookAhead(range, place);
        float* sums = sums_ + (c - range.column) * RoundUp(t_.rows, kAmxPair);
        if (TilesAt(place) == 2) {
          Rows<2>(place, right, sums);
        } else {
          Rows<1>(place, right, sums);
        }
      }
    }
  }

  size_t TilesAt(const Place& place) const { return AmxTilesOfPair(place.column, t_.last_column); }

  /// Number of tiles of the depth that are multiplied at once.
  size_t CountAt(const Place& place) const {
    const size_t end = HWY_MIN(place.step / kSpan * kSpan + kSpan, steps_);
    return HWY_MIN(kDepth, end - place.step);
  }

  const std::uint32_t* RightAt(const AmxRange& range, const Place& place) const {
    if constexpr (kPacked) {
      const size_t tile = place.column / kAmxColumns * steps_ +
                          place.step * AmxTilesOfPair(place.column, t_.columns);
      return static_cast<const std::uint32_t*>(t_.right) + tile * kAmxWords;
    } else {
      const size_t steps = range.end_step - range.step;
      const size_t tile = (place.column - range.column) / kAmxColumns * steps +
                          (place.step - range.step) * TilesAt(place);
      return panel_ + tile * kAmxWords;
    }
  }

  /// The place after `place`; its column is t_.last_column if there is none, or none is packed yet.
  Place NextOf(const AmxRange& range, const Place& place) const {
    if (place.step + kDepth < range.end_step) return {place.column, place.step + kDepth};
    if (place.column + kAmxPair < range.end_column) return {place.column + kAmxPair, range.step};
    if (!kPacked) return {t_.last_column, 0};
    if (range.end_step < steps_) return {range.column, range.end_step};
    return {range.end_column, 0};
  }

  /// Prepares what is done for the next place during the products of this one.
  void LookAhead(const AmxRange& range, const Place& place) {
    ahead_ = {};
    const Place next = NextOf(range, place);
    if (next.column >= t_.last_column) return;
    const size_t steps = (t_.rows + kAmxPair - 1) / kAmxPair * CountAt(place);
    const std::uint32_t* right = RightAt(range, next);
    const size_t tiles = CountAt(next) * TilesAt(next);
    if constexpr (kParts == 2) {
      StartSplit(right, next);
      halves_.tiles_per_step = (tiles + steps - 1) / steps;
      right += tiles * kAmxWords;
    }
    if constexpr (kPacked) {
      ahead_.next = reinterpret_cast<const char*>(right);
      ahead_.lines = tiles * kAmxRows;
      ahead_.lines_per_step = (ahead_.lines + steps - 1) / steps;
    }
  }

  void StartSplit(const std::uint32_t* right, const Place& place) {
    std::uint32_t* other = split_ + (halves_.to == split_ ? kSplitTiles / 2 * kAmxWords : 0);
    halves_ = {right, other, CountAt(place) * TilesAt(place), TilesAt(place), 0, 0};
  }

  /// Splits up to `count` tiles.
  HWY_INLINE void SplitTiles(size_t count) {
    const size_t end = HWY_MIN(halves_.done + count, halves_.tiles);
    for (; halves_.done < end; ++halves_.done) {
      const size_t i = halves_.done, rights = halves_.rights;
      std::uint32_t* high = halves_.to + (i / rights * rights * 2 + i % rights) * kAmxWords;
      SplitAmxTile(halves_.from + i * kAmxWords, high, high + rights * kAmxWords);
    }
  }

  /// The parts of the tiles at `right`, of which some have been split before.
  const std::uint32_t* SplitNow(const std::uint32_t* right, const Place& place) {
    if (halves_.from != right) StartSplit(right, place);
    SplitTiles(halves_.tiles);
    return halves_.to;
  }

  template <size_t kRights>
  void Rows(const Place& place, const std::uint32_t* right, float* sums) {
    const size_t padded = RoundUp(t_.rows, kAmxRows);
    const size_t count = CountAt(place);
    const auto* left = static_cast<const std::uint32_t*>(t_.packed_left);
    for (size_t row = 0; row < t_.rows; row += kAmxPair, sums += kAmxPair * kAmxPair) {
      const size_t tiles = AmxTilesOfPair(row, padded);
      const std::uint32_t* at =
          left + (row / kAmxRows * steps_ + place.step * tiles) * kParts * kAmxWords;
      const float* start = place.step == 0 ? nullptr : sums;
      float* to = place.step + count == steps_ ? last_ : sums;
      if (tiles == 2) {
        Block<2, kRights>(at, right, start, count, to);
      } else {
        Block<1, kRights>(at, right, start, count, to);
      }
      if (to == last_) pending_ = {row, place.column, 0, HWY_MIN(kAmxPair, t_.rows - row)};
    }
  }

  /// to = start (or zero) + the products of `count` steps. The sums before are stored meanwhile.
  template <size_t kLefts, size_t kRights>
  void Block(const std::uint32_t* HWY_RESTRICT left, const std::uint32_t* HWY_RESTRICT right,
             const float* start, size_t count, float* to) {
    if (start == nullptr) {
      ZeroSums(tiles_);
    } else {
      LoadBlock<kLefts, kRights>(start);
    }
    for (size_t i = 0; i < count; ++i) {
      if constexpr (kPacked) Prefetch();
      if constexpr (kParts == 2) SplitTiles(halves_.tiles_per_step);
      if (pending_.row < pending_.rows) StoreRows(kRowsPerStep);
      AddStep<kLefts, kRights>(left, right);
      left += kLefts * kParts * kAmxWords;
      right += kRights * kParts * kAmxWords;
    }
    if (to == last_) StoreRows(pending_.rows);
    StoreBlock<kLefts, kRights>(to);
  }

  template <size_t kLefts, size_t kRights>
  HWY_INLINE void AddStep(const std::uint32_t* HWY_RESTRICT left,
                          const std::uint32_t* HWY_RESTRICT right) {
    if constexpr (kParts == 1) {
      AddPair<kLefts, kRights, true, true>(left, right);
    } else {
      // In an order that changes one factor at a time.
      const std::uint32_t* low_right = right + kRights * kAmxWords;
      AddPair<kLefts, kRights, true, true>(left, low_right);
      AddPair<kLefts, kRights, false, true>(left, right);
      AddPair<kLefts, kRights, true, false>(left + kLefts * kAmxWords, right);
      AddPair<kLefts, kRights, false, true>(left, low_right);
    }
  }

  /// Adds the products of a pair of tiles by a pair, of which the new ones are loaded.
  template <size_t kLefts, size_t kRights, bool kLoadLeft, bool kLoadRight>
  HWY_INLINE void AddPair(const std::uint32_t* HWY_RESTRICT left,
                          const std::uint32_t* HWY_RESTRICT right) {
    if constexpr (kLoadLeft) tiles_.template LoadOnce<4>(left, kAmxRowBytes);
    if constexpr (kLoadRight) tiles_.template Load<6>(right, kAmxRowBytes);
    tiles_.template AddPairs<0, 4, 6>();
    if constexpr (kRights == 2) {
      if constexpr (kLoadRight) tiles_.template Load<7>(right + kAmxWords, kAmxRowBytes);
      tiles_.template AddPairs<1, 4, 7>();
    }
    if constexpr (kLefts == 2) {
      if constexpr (kLoadLeft) tiles_.template LoadOnce<5>(left + kAmxWords, kAmxRowBytes);
      tiles_.template AddPairs<2, 5, 6>();
      if constexpr (kRights == 2) tiles_.template AddPairs<3, 5, 7>();
    }
  }

  // In memory, sums are tiles one after the other.
  template <size_t kLefts, size_t kRights>
  HWY_INLINE void LoadBlock(const float* sums) {
    tiles_.template Load<0>(sums, kAmxRowBytes);
    if constexpr (kRights == 2) tiles_.template Load<1>(sums + kAmxWords, kAmxRowBytes);
    if constexpr (kLefts == 2) tiles_.template Load<2>(sums + 2 * kAmxWords, kAmxRowBytes);
    if constexpr (kLefts == 2 && kRights == 2) {
      tiles_.template Load<3>(sums + 3 * kAmxWords, kAmxRowBytes);
    }
  }
  template <size_t kLefts, size_t kRights>
  HWY_INLINE void StoreBlock(float* sums) {
    tiles_.template Store<0>(sums, kAmxRowBytes);
    if constexpr (kRights == 2) tiles_.template Store<1>(sums + kAmxWords, kAmxRowBytes);
    if constexpr (kLefts == 2) tiles_.template Store<2>(sums + 2 * kAmxWords, kAmxRowBytes);
    if constexpr (kLefts == 2 && kRights == 2) {
      tiles_.template Store<3>(sums + 3 * kAmxWords, kAmxRowBytes);
    }
  }

  HWY_INLINE void Prefetch() {
    const size_t lines = HWY_MIN(ahead_.lines, ahead_.lines_per_step);
    const char* next = ahead_.next;
    for (size_t i = 0; i < lines; ++i) __builtin_prefetch(next + i * 64, 0, 2);
    ahead_.next = next + lines * 64;
    ahead_.lines -= lines;
  }

  /// Stores up to `count` of the pending rows.
  HWY_INLINE void StoreRows(size_t count) {
    const size_t end = HWY_MIN(pending_.row + count, pending_.rows);
    for (; pending_.row < end; ++pending_.row) {
      const float* sums =
          last_ + pending_.row / kAmxRows * 2 * kAmxWords + pending_.row % kAmxRows * kAmxColumns;
      StoreRow(t_.output[pending_.first_row + pending_.row], pending_.first_row + pending_.row,
               sums);
    }
  }

  HWY_INLINE void StoreRow(void* output, size_t row, const float* HWY_RESTRICT sums) {
    const hn::ScalableTag<float> d;
    constexpr size_t kLanes = hn::MaxLanes(d);
    T* HWY_RESTRICT out = static_cast<T*>(output) + pending_.column;
    const size_t width = HWY_MIN(kAmxPair, t_.last_column - pending_.column);
    auto nan = hn::MaskFalse(d);
    for (size_t c = 0; c < kAmxPair; c += kLanes) {
      const size_t at = c / kAmxColumns * kAmxWords + c % kAmxColumns;
      if (c >= width) break;
      const auto x = hn::Load(d, sums + at);
      if constexpr (kParts == 2) nan = hn::Or(nan, hn::IsNaN(x));
      if (c + kLanes <= width) {
        StoreNarrow(x, d, out + c);
      } else {
        StoreNarrowN(x, d, out + c, width - c);
      }
    }
    if constexpr (kParts == 2) {
      if (HWY_UNLIKELY(!hn::AllFalse(d, nan))) MultiplyAgain(row, width);
    }
  }

  /// Computes a row again that has NaN, because parts of infinite numbers are NaN.
  HWY_NOINLINE void MultiplyAgain(size_t row, size_t width) {
    GatherMmTile again = t_;
    again.left = t_.left + row;
    again.output = t_.output + row;
    again.rows = 1;
    again.first_column = pending_.column;
    again.last_column = pending_.column + width;
    MultiplyFewOf<1, T, kLayout>(again, again_);
  }

  static constexpr size_t kRowsPerStep = kAmxPair / kDepth;

  const GatherMmTile& t_;
  const size_t steps_;  // tiles of depth
  const size_t group_;
  float* const last_;           // complete sums of a block
  float* const again_;          // scratch memory of MultiplyAgain
  std::uint32_t* const split_;  // parts of a right factor, and of the next one
  float* const sums_;
  std::uint32_t* const panel_;
  Pending pending_ = {};
  Ahead ahead_ = {};
  Halves halves_ = {};
  Tiles tiles_;
};

template <class Tiles, typename T, GatherMmLayout kLayout>
void MultiplyTiles(const GatherMmTile& t, void* scratch) {
  if (t.rows == 0) return;
  if (t.rows <= kGatherMmFewRows) {
    if constexpr (kAmxParts<T> == 2) return MultiplyFewOf<T, kLayout>(t, scratch);
    if (MultiplyFewWidened<kLayout>(t, scratch)) return;
  }
  AmxProduct<Tiles, T, kLayout>(t, scratch).Run();
}

template <class Tiles, typename T>
GatherMmKernel ProductOfTiles(GatherMmLayout layout) {
  switch (layout) {
    case GatherMmLayout::kRows:
      return MultiplyTiles<Tiles, T, GatherMmLayout::kRows>;
    case GatherMmLayout::kTransposed:
      return MultiplyTiles<Tiles, T, GatherMmLayout::kTransposed>;
    case GatherMmLayout::kPacked:
      return MultiplyTiles<Tiles, T, GatherMmLayout::kPacked>;
  }
  return nullptr;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
