// Products of many rows of 8-bit integers with codes, in tile registers. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_FEW_BITS_TILED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_FEW_BITS_TILED_INL_H_
#undef COREAI_KERNELS_FEW_BITS_TILED_INL_H_
#else
#define COREAI_KERNELS_FEW_BITS_TILED_INL_H_
#endif

#include "kernels/few_bits/rounded-inl.h"
#include "simd/amx-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR  // which has no vectors of bytes

// Groups that are multiplied while their tiles of rows are in registers.
inline constexpr size_t kTiledGroups = 4;
inline constexpr size_t kStripTiles = kFewBitsStrip / kAmxColumns;
// From this number of rows on, tiles of 16 rows take less time than VNNI (768 inputs, 2048 outputs,
// groups of 32, AMX, 2026-11; docs/internals/performance_log.md).
inline constexpr size_t kLeastTiledRows = 16;
// Up to this number of rows, codes of 8 bits are multiplied where they are. 16 rows by 640 × 65536
// codes take 0.65 to 0.7 of the time, 64 rows 0.97, and 512 rows, whose own tiles are loaded more
// often, 1.08 (AMX, one thread, 2026-11).
inline constexpr size_t kMostRowsInPlace = 32;

/// Whether codes less zero points are bytes, and every group is in one or two tiles of a row.
inline bool FitsTiles(const FewBitsWeight& w) {
  if (!w.IsWithin(-128, 127)) return false;
  size_t step = kAmxByteDepth;  // the greatest common divisor of both
  while (w.padded % step != 0) step /= 2;
  return w.padded <= kAmxByteDepth + step;
}

/// Multiplies rows by a strip. Rows are cut into tiles of 64 bytes, whatever the size of a group;
/// the codes of a group, less their zero points, are expanded to one or two tiles, with zeros
/// around them. With kInPlace, tiles are as deep as a group, and codes are read where they are:
/// zero points are subtracted from the sums. Tile registers multiply, and meanwhile vector
/// instructions scale the sums of products before.
template <class Tiles, size_t kBits, bool kInPlace>
class TiledStrip {
 public:
  TiledStrip(const FewBitsWeight& w, const RoundedRows& rows)
      : w_(w),
        rows_(rows),
        columns_(w, rows.column),
        depth_(w.groups * w.padded),
        tiles_(kInPlace ? w.padded : kAmxByteDepth) {}

  void Run() {
    for (first_ = 0; first_ < w_.groups; first_ += groups_) {
      if constexpr (kInPlace) {
        groups_ = HWY_MIN(kTiledGroups, w_.groups - first_);
        ahead_ = GroupsAhead(w_, columns_, first_ * w_.padded, groups_ * w_.padded, groups_,
                             groups_ * kStripTiles);
      } else {
        ExpandGroups();
      }
      Begin({0, 0});
      Store(sums_[0]);
      for (Step step = {0, 0}; step.row < rows_.rows;) {
        const auto& sums = sums_[step.tile % 2];
        const Step next = After(step);
        Begin(next);
        if (kLanes == kAmxColumns && step.row + kAmxRows <= rows_.rows) {
          AddInRegisters(step, sums);
        } else {
          AddInMemory(step, sums);
        }
        Store(sums_[next.tile % 2]);
        step = next;
      }
    }
  }

 private:
  using ByteTag = hn::Repartition<uint8_t, WordTag>;
  using Sums = int32_t[kTiledGroups][kAmxRows * kAmxColumns];

  /// 16 rows by 16 columns: a product for each group.
  struct Step {
    size_t row, tile;
  };

  static Step After(Step step) {
    return step.tile + 1 < kStripTiles ? Step{step.row, step.tile + 1}
                                       : Step{step.row + kAmxRows, 0};
  }

  /// The codes of a group of those that are multiplied, in place.
  const uint8_t* CodesOf(size_t g) const {
    return columns_.codes + (first_ + g) * w_.padded * kFewBitsStrip;
  }

  /// Expands the groups from `first_` on that are in the same two tiles of a row.
  void ExpandGroups() {
    first_tile_ = first_ * w_.padded / kAmxByteDepth;
    const size_t end = (first_tile_ + 2) * kAmxByteDepth;
    const size_t most = HWY_MIN(kTiledGroups, w_.groups - first_);
    for (groups_ = 0; groups_ < most && (first_ + groups_ + 1) * w_.padded <= end; ++groups_) {
      ExpandGroup(groups_);
    }
  }

  void ExpandGroup(size_t g) {
    const size_t begin = (first_ + g) * w_.padded;
    const uint8_t* codes = columns_.codes + begin / UnitCodes(kBits) * kUnitBytes<kBits>;
    hn::Vec<ByteTag> zeros[kFewBitsStrip / kLanes];
    for (size_t c = 0; c < kFewBitsStrip; c += kLanes) {
      zeros[c / kLanes] = ZeroBytesOf(columns_.scales + (first_ + g) * kFewBitsStrip + c);
    }
    // Groups of these sizes are in the same places of all tiles.
    const bool is_zero = first_ != 0 && w_.padded % 16 == 0 && 2 * kAmxByteDepth % w_.padded == 0;
    if (!is_zero) hwy::ZeroBytes(codes_[g], sizeof(codes_[g]));
    is_used_[g][0] = is_used_[g][1] = false;
    for (size_t k = begin; k < begin + w_.padded; codes += kUnitBytes<kBits>) {
      PrefetchUnit<kBits>(codes, kFewBitsStrip / kLanes);
#pragma GCC unroll 8
      for (size_t word = 0; word < kUnitWords<kBits>; ++word, k += kWordCodes<kBits>) {
        const size_t tile = k / kAmxByteDepth - first_tile_;
        const size_t at = k % kAmxByteDepth / 4 * kAmxRowBytes;
        is_used_[g][tile] = true;
        for (size_t c = 0; c < kFewBitsStrip; c += kLanes) {
          uint8_t* to = codes_[g][tile][c / kAmxColumns] + at + c % kAmxColumns * 4;
          ExpandWord(UnitWord<kBits>(codes + c * 4, word), zeros[c / kLanes], to);
        }
      }
    }
  }

  static HWY_INLINE void ExpandWord(Words word, hn::Vec<ByteTag> zeros, uint8_t* HWY_RESTRICT to) {
#pragma GCC unroll 4
    for (size_t part = 0; part < kWordCodes<kBits> / 4; ++part, to += kAmxRowBytes) {
      const Words quads = QuadsOf<kWordBits<kBits>>(word, static_cast<int>(part));
      hn::StoreU(hn::Sub(hn::BitCast(ByteTag(), quads), zeros), ByteTag(), to);
    }
  }

  /// Four times the zero point of each column.
  HWY_INLINE hn::Vec<ByteTag> ZeroBytesOf(size_t at) const {
    const Ints zero = hn::NearestInt(ZerosOf(w_, at));
    return hn::BitCast(ByteTag(), hn::Mul(zero, hn::Set(IntTag(), 0x01010101)));
  }

  /// Multiplies; the sums are in registers. After the last rows, sums are not used.
  HWY_INLINE void Begin(Step step) {
    static_assert(kTiledGroups == 4, "one register for each");
    if (!kInPlace && step.tile == 0 && step.row < rows_.rows) LoadRows(step.row);
    Multiply<0, 4>(step);
    if (groups_ > 1) Multiply<1, 5>(step);
    if (groups_ > 2) Multiply<2, 4>(step);
    if (groups_ > 3) Multiply<3, 5>(step);
  }

  HWY_INLINE void LoadRows(size_t row) {
    const int8_t* const left = rows_.left + row * depth_ + first_tile_ * kAmxByteDepth;
    tiles_.template Load<6>(left, depth_);
    if ((first_tile_ + 1) * kAmxByteDepth < depth_) {
      tiles_.template Load<7>(left + kAmxByteDepth, depth_);
    }
  }

  template <int kGroup, int kCodes>
  HWY_INLINE void Multiply(Step step) {
    tiles_.template Zero<kGroup>();
    if constexpr (kInPlace) {
      if (step.row >= rows_.rows) return;
      const int8_t* const left = rows_.left + step.row * depth_ + (first_ + kGroup) * w_.padded;
      const uint8_t* const codes = CodesOf(kGroup) + step.tile * kAmxRowBytes;
      tiles_.template Load<kCodes>(codes, kWordBytes);
      tiles_.template Load<kCodes + 2>(left, depth_);
      tiles_.template AddSignedUnsigned<kGroup, kCodes + 2, kCodes>();
      if (step.row == 0) ahead_.Fetch();
      return;
    }
    if (is_used_[kGroup][0]) {
      tiles_.template Load<kCodes>(codes_[kGroup][0][step.tile], kAmxRowBytes);
      tiles_.template AddSigned<kGroup, 6, kCodes>();
    }
    if (is_used_[kGroup][1]) {
      tiles_.template Load<kCodes>(codes_[kGroup][1][step.tile], kAmxRowBytes);
      tiles_.template AddSigned<kGroup, 7, kCodes>();
    }
  }

  /// Stores the sums of Begin. It is called when those of the step before have been scaled, which
  /// takes less time than all other orders (docs/internals/performance_log.md, "Few-bit weights").
  HWY_INLINE void Store(Sums& sums) {
    tiles_.template Store<0>(sums[0], kAmxRowBytes);
    if (groups_ > 1) tiles_.template Store<1>(sums[1], kAmxRowBytes);
    if (groups_ > 2) tiles_.template Store<2>(sums[2], kAmxRowBytes);
    if (groups_ > 3) tiles_.template Store<3>(sums[3], kAmxRowBytes);
  }

  /// Adds to `totals` the sums of kRows rows of a group, from row `row` on, times scales and steps.
  template <size_t kRows>
  HWY_INLINE void AddScaled(size_t row, size_t column, size_t group, const int32_t* sums,
                            Floats (&totals)[kRows]) const {
    const FloatTag d;
    const size_t at = columns_.scales + group * kFewBitsStrip + column;
    const Floats scale = ScalesOf(w_, at), zero = kInPlace ? ZerosOf(w_, at) : hn::Zero(d);
    const float* const steps = rows_.steps + group * rows_.stride + row;
    const float* const of_rows = rows_.sums + group * rows_.stride + row;
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      Floats sum = hn::ConvertTo(d, hn::LoadU(IntTag(), sums + r * kAmxColumns));
      if constexpr (kInPlace) sum = hn::NegMulAdd(zero, hn::Set(d, of_rows[r]), sum);
      totals[r] = hn::MulAdd(sum, hn::Mul(scale, hn::Set(d, steps[r])), totals[r]);
    }
  }

  /// Adds all groups of 16 rows and 16 columns, which are vectors.
  HWY_INLINE void AddInRegisters(Step step, const Sums& sums) {
    const FloatTag d;
    const size_t column = step.tile * kAmxColumns;
    float* const out = rows_.output + step.row * kFewBitsStrip + column;
    Floats totals[kAmxRows];
#pragma GCC unroll 16
    for (size_t r = 0; r < kAmxRows; ++r) {
      totals[r] = first_ == 0 ? hn::Zero(d) : hn::LoadU(d, out + r * kFewBitsStrip);
    }
    for (size_t g = 0; g < groups_; ++g) {
      AddScaled<kAmxRows>(step.row, column, first_ + g, sums[g], totals);
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < kAmxRows; ++r) hn::StoreU(totals[r], d, out + r * kFewBitsStrip);
  }

  /// The same for fewer rows or smaller vectors.
  void AddInMemory(Step step, const Sums& sums) {
    const FloatTag d;
    const size_t rows = HWY_MIN(kAmxRows, rows_.rows - step.row);
    for (size_t i = 0; i < rows * kAmxColumns; i += kLanes) {
      const size_t row = step.row + i / kAmxColumns;
      const size_t column = step.tile * kAmxColumns + i % kAmxColumns;
      float* const out = rows_.output + row * kFewBitsStrip + column;
      Floats totals[1] = {first_ == 0 ? hn::Zero(d) : hn::LoadU(d, out)};
      for (size_t g = 0; g < groups_; ++g) {
        AddScaled<1>(row, column, first_ + g, sums[g] + i, totals);
      }
      hn::StoreU(totals[0], d, out);
    }
  }

  const FewBitsWeight& w_;
  const RoundedRows& rows_;
  const Columns columns_;
  const size_t depth_;
  size_t first_ = 0;       // of the groups that are expanded
  size_t groups_ = 0;      // their number
  size_t first_tile_ = 0;  // of a row, in which the first one begins
  GroupsAhead ahead_;      // of codes in place
  Tiles tiles_;
  bool is_used_[kTiledGroups][2];
  alignas(64) uint8_t codes_[kTiledGroups][2][kStripTiles][kAmxBytes];
  alignas(64) Sums sums_[2];  // of even and odd steps
};

template <class Tiles>
void TileRounded(const FewBitsWeight& w, const RoundedRows& rows) {
  if (w.bits == 2) return TiledStrip<Tiles, 2, false>(w, rows).Run();
  if (w.bits == 4) return TiledStrip<Tiles, 4, false>(w, rows).Run();
  if (w.bits == 5) return TiledStrip<Tiles, 5, false>(w, rows).Run();
  if (w.bits == 6) return TiledStrip<Tiles, 6, false>(w, rows).Run();
  const bool few = rows.rows <= kMostRowsInPlace && w.padded <= kAmxByteDepth;
  if (few) return TiledStrip<Tiles, 8, true>(w, rows).Run();
  TiledStrip<Tiles, 8, false>(w, rows).Run();
}

/// Like Rounded; the last rows are not computed as a tile if they are too few, nor large groups.
template <class Tiles>
void RoundedWithTiles(const FewBitsWeight& w, const RoundedRows& rows) {
  const size_t tiled = rows.rows >= kLeastTiledRows && FitsTiles(w) ? RowsInTiles(rows.rows) : 0;
  RoundedRows part = rows;
  part.rows = tiled;
  if (tiled > 0) TileRounded<Tiles>(w, part);
  if (tiled < rows.rows) Rounded(w, rows.From(tiled, w.groups * w.padded));
}

#endif

inline void RoundedWithAmx(const FewBitsWeight& w, const RoundedRows& rows) {
#if HWY_TARGET != HWY_SCALAR
  if (kHasTiles) return RoundedWithTiles<KernelTiles>(w, rows);
#endif
  Rounded(w, rows);
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
