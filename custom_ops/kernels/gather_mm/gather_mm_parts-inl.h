// Products of float32 by tiles of bfloat16. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATHER_MM_PARTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATHER_MM_PARTS_INL_H_
#undef COREAI_KERNELS_GATHER_MM_PARTS_INL_H_
#else
#define COREAI_KERNELS_GATHER_MM_PARTS_INL_H_
#endif

#include "kernels/gather_mm/gather_mm_parts_pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Multiplies blocks of two by two tiles. The parts of two tiles of columns over kDepth tiles of
/// the depth are in the first-level cache while all rows, in the second-level cache, are multiplied
/// by them. Rows of more than kSpan tiles of the depth are processed in spans, for a group of
/// columns each, whose sums are in the second-level cache as well.
template <class Tiles>
class PartsProduct {
 public:
  PartsProduct(const PartsTile& tile, void* scratch)
      : t_(tile.product),
        states_(tile.states),
        steps_(AmxSteps(t_.depth)),
        group_(steps_ <= kSpan ? kAmxPair : kGroup),
        block_(static_cast<float*>(scratch)),
        sums_(block_ + kAmxPair * kAmxPair) {
    static_assert((kAmxPair + kGatherMmMaxTileRows) * 4 * kGroup <= kPartsScratchBytes,
                  "scratch is too small");
  }

  void Run() {
    for (size_t column = t_.first_column; column < t_.last_column; column += group_) {
      const size_t end = HWY_MIN(column + group_, t_.last_column);
      for (size_t step = 0; step < steps_; step += kSpan) {
        for (size_t c = column; c < end; c += kAmxPair) {
          for (size_t s = step; s < HWY_MIN(step + kSpan, steps_); s += kDepth) {
            if (t_.columns - c > kAmxColumns) {
              Rows<2>(c, s, sums_ + (c - column) * RoundUp(t_.rows, kAmxPair));
            } else {
              Rows<1>(c, s, sums_ + (c - column) * RoundUp(t_.rows, kAmxPair));
            }
          }
        }
      }
    }
    AddRows(kAmxPair);
  }

 private:
  // Tiles of the depth of a block: 24 KB of the first-level cache, and the products that are summed
  // before they are added to others.
  static constexpr size_t kDepth = 4;
  static constexpr size_t kSpan = 24;
  static constexpr size_t kGroup = 512;  // columns

  /// Sums of a block that are not added to those before yet.
  struct Pending {
    size_t first_row, column;
    float* sums;    // of the blocks before
    bool has_sums;  // whether there are any
    bool is_last;   // whether they are complete then
    size_t row = 0, rows = 0;
  };

  template <size_t kRights>
  void Rows(size_t column, size_t step, float* sums) {
    const size_t padded = RoundUp(t_.rows, kAmxRows);
    const size_t count = HWY_MIN(kDepth, steps_ - step);
    const auto* left = static_cast<const std::uint32_t*>(t_.packed_left);
    const std::uint32_t* right =
        static_cast<const std::uint32_t*>(t_.right) +
        (column / kAmxColumns * steps_ + step * kRights) * kFloatParts * kAmxWords;
    LookAhead(right, kRights, count);
    for (size_t row = 0; row < t_.rows; row += kAmxPair, sums += kAmxPair * kAmxPair) {
      const size_t tiles = AmxTilesOfPair(row, padded);
      const std::uint32_t* at =
          left + (row / kAmxRows * steps_ + step * tiles) * kFloatParts * kAmxWords;
      if (tiles == 2) {
        Block<2, kRights>(at, right, count);
      } else {
        Block<1, kRights>(at, right, count);
      }
      pending_ = {row,
                  column,
                  sums,
                  step != 0,
                  step + count == steps_,
                  0,
                  HWY_MIN(kAmxPair, t_.rows - row)};
    }
  }

  /// block_ = the products of `count` steps, those of small parts first. The sums of the block
  /// before are added meanwhile.
  template <size_t kLefts, size_t kRights>
  HWY_INLINE void Block(const std::uint32_t* HWY_RESTRICT left,
                        const std::uint32_t* HWY_RESTRICT right, size_t count) {
    constexpr size_t kLeft = kLefts * kAmxWords, kRight = kRights * kAmxWords;
    ZeroSums(tiles_);
    for (size_t i = 0; i < count; ++i) {
      const std::uint32_t* l = left + i * kFloatParts * kLeft;
      const std::uint32_t* r = right + i * kFloatParts * kRight;
      Prefetch();
      AddRows(kRowsPerStep);
      // In an order that changes one factor at a time.
      AddPair<kLefts, kRights, true, true>(l + 2 * kLeft, r);
      AddPair<kLefts, kRights, true, false>(l + kLeft, r);
      AddPair<kLefts, kRights, false, true>(l + kLeft, r + kRight);
      AddPair<kLefts, kRights, true, false>(l, r + kRight);
      AddPair<kLefts, kRights, false, true>(l, r + 2 * kRight);
    }
    for (size_t i = 0; i < count; ++i) {
      AddRows(kRowsPerStep);
      AddPair<kLefts, kRights, true, true>(left + i * kFloatParts * kLeft,
                                           right + i * kFloatParts * kRight);
    }
    AddRows(kAmxPair);
    StoreSums<kLefts, kRights>(tiles_, block_);
  }

  /// Adds the products of a pair of tiles by a pair, of which the new ones are loaded.
  template <size_t kLefts, size_t kRights, bool kLoadLeft, bool kLoadRight>
  HWY_INLINE void AddPair(const std::uint32_t* HWY_RESTRICT left,
                          const std::uint32_t* HWY_RESTRICT right) {
    // Each tile is loaded just before its first product: loads and products overlap then.
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

  /// Prepares to prefetch the tiles of columns that follow into the second-level cache.
  void LookAhead(const std::uint32_t* right, size_t tiles, size_t count) {
    const size_t words = tiles * count * kFloatParts * kAmxWords;
    next_ = reinterpret_cast<const char*>(right + words);
    lines_ = words / kAmxColumns;
    lines_per_step_ = lines_ / ((t_.rows + kAmxPair - 1) / kAmxPair * count) + 1;
  }

  HWY_INLINE void Prefetch() {
    const size_t lines = HWY_MIN(lines_, lines_per_step_);
    for (size_t i = 0; i < lines; ++i) __builtin_prefetch(next_ + i * 64, 0, 2);
    next_ += lines * 64;
    lines_ -= lines;
  }

  /// Adds up to `count` of the pending rows to the sums before, or stores results.
  HWY_INLINE void AddRows(size_t count) {
    const size_t first = pending_.row, end = HWY_MIN(first + count, pending_.rows);
    if (first >= end) return;
    pending_.row = end;
    const size_t width = Width();
    const float* from = block_ + first * width;
    float* sums = pending_.sums + first * kAmxPair;
    if (pending_.is_last) {
      for (size_t r = first; r < end; ++r, from += width, sums += kAmxPair) StoreRow(r, from, sums);
    } else if (pending_.has_sums) {
      for (size_t r = first; r < end; ++r, from += width, sums += kAmxPair)
        AddRow<true>(width, from, sums);
    } else {
      for (size_t r = first; r < end; ++r, from += width, sums += kAmxPair)
        AddRow<false>(width, from, sums);
    }
  }

  /// Columns of the pending block.
  size_t Width() const {
    return t_.columns - pending_.column > kAmxColumns ? kAmxPair : kAmxColumns;
  }

  template <bool kHasSums>
  HWY_INLINE void AddRow(size_t width, const float* HWY_RESTRICT from, float* HWY_RESTRICT sums) {
    const hn::ScalableTag<float> d;
    for (size_t c = 0; c < width; c += hn::MaxLanes(d)) {
      auto x = hn::Load(d, from + c);
      if constexpr (kHasSums) x = hn::Add(x, hn::Load(d, sums + c));
      hn::Store(x, d, sums + c);
    }
  }

  HWY_INLINE void StoreRow(size_t row, const float* HWY_RESTRICT from,
                           const float* HWY_RESTRICT sums) {
    const hn::ScalableTag<float> d;
    const size_t width = HWY_MIN(kAmxPair, t_.last_column - pending_.column);
    float* HWY_RESTRICT out =
        static_cast<float*>(t_.output[pending_.first_row + row]) + pending_.column;
    PartsRow* state = states_ + pending_.first_row + row;
    const bool has_sums = pending_.has_sums;
    ForEachVector(d, width, [&](size_t c, auto lanes) COREAI_INLINE_LAMBDA {
      auto x = hn::Load(d, from + c);
      if (has_sums) x = hn::Add(x, hn::Load(d, sums + c));
      if (HWY_UNLIKELY(IsSmall(state))) Check(d, x, width - c, state);
      lanes.Store(x, d, out + c);
    });
  }

  static HWY_INLINE bool IsSmall(const PartsRow* state) {
    return __atomic_load_n(state, __ATOMIC_RELAXED) == PartsRow::kSmall;
  }

  /// Marks a row one of whose first `n` sums is so small that what was flushed matters: at most
  /// 2^-93 of each of 2^20 products, 2^-24 of a sum of 2^-49.
  template <class D>
  HWY_NOINLINE static void Check(D d, hn::Vec<D> x, size_t n, PartsRow* state) {
    const auto small = hn::Lt(hn::Abs(x), hn::Set(d, 0x1p-48f));
    // Other columns of the row may be other threads'.
    if (!hn::AllFalse(d, hn::And(small, hn::FirstN(d, n)))) {
      __atomic_store_n(state, PartsRow::kOther, __ATOMIC_RELAXED);
    }
  }

  static constexpr size_t kRowsPerStep = kAmxPair / kDepth / 2;

  const GatherMmTile& t_;
  PartsRow* const states_;
  const size_t steps_;  // tiles of depth
  const size_t group_;
  float* const block_;  // sums of a block
  float* const sums_;   // [columns of a group / 32, rows, 32]
  Pending pending_ = {};
  const char* next_ = nullptr;
  size_t lines_ = 0, lines_per_step_ = 0;
  Tiles tiles_;
};

template <class Tiles>
void MultiplyParts(const PartsTile& tile, void* scratch) {
  if (tile.product.rows != 0) PartsProduct<Tiles>(tile, scratch).Run();
}

template <class Tiles>
GatherMmOfParts KernelsOfParts() {
  return {MultiplyParts<Tiles>, PackPartsLeft, PackPartsRight};
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
