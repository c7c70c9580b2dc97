// Products of rows as sums of bfloat16 with codes, in tile registers. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_FEW_BITS_TILED_PARTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_FEW_BITS_TILED_PARTS_INL_H_
#undef COREAI_KERNELS_FEW_BITS_TILED_PARTS_INL_H_
#else
#define COREAI_KERNELS_FEW_BITS_TILED_PARTS_INL_H_
#endif

#include "kernels/few_bits/code_pairs-inl.h"
#include "kernels/few_bits/parts-inl.h"
#include "kernels/few_bits/rounded-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

static_assert(kFewBitsPairDepth == kAmxPairDepth && kFewBitsTileRows == kAmxRows, "one tile");

/// Multiplies rows by a strip. A block of codes is expanded at a time, and all rows are multiplied
/// by it. A step multiplies 16 rows by it, stores the sums of the step before, and scales those of
/// the step before that, one after the other: vector instructions then find the sums in the cache,
/// and run while tiles are multiplied (docs/internals/performance_log.md, "Few-bit weights").
template <class Tiles, size_t kBits, size_t kParts, bool kSteps>
class PartsStrip {
 public:
  PartsStrip(const FewBitsWeight& w, const FewBitsParts& rows)
      : w_(w),
        rows_(rows),
        columns_(w, rows.column),
        all_(w.groups * w.pair_tiles()),
        halves_(w.tile_groups() > 1) {}

  template <class MakePairs>
  void Run(const MakePairs& make) {
    const size_t tiles = w_.pair_tiles(), most = HWY_MAX(kBlockTiles / tiles, 1);
    if (halves_) hwy::ZeroBytes(codes_, sizeof(codes_));  // where the other group is
    Block block = {0, 0, 0};
    for (; block.first < all_; block.first += block.pieces * block.tiles) {
      block.tiles = HWY_MIN(kBlockTiles, tiles - block.first % tiles);
      block.pieces = HWY_MIN(HWY_MIN(most, kPieces), (all_ - block.first + tiles - 1) / tiles);
      for (size_t i = 0; i < block.pieces * block.tiles; ++i) {
        Expand(make, block.first + i, codes_[i]);
      }
      Multiply(block, (rows_.rows + kAmxRows - 1) / kAmxRows * (kStripTiles / kWide));
    }
    Multiply({all_, 0, 0}, 2);
  }

 private:
  static constexpr size_t kBlockTiles = 4;
  static constexpr size_t kStripTiles = kFewBitsStrip / kAmxColumns;
  // Tiles of columns of a step, and groups: of several parts, whose tiles of rows are loaded for
  // two tiles of columns, and of one, whose totals are loaded for four groups.
  static constexpr size_t kWide = kParts == 1 ? 1 : 2;
  static constexpr size_t kPieces = 4 / kWide;
  static constexpr size_t kVecs = kAmxColumns / kLanes;
  using Codes = uint32_t[kStripTiles][kAmxBytes / 4];
  using Sums = float[kPieces * kWide][kAmxRows * kAmxColumns];
  using Totals = Floats[kAmxRows][kVecs];

  /// Consecutive tiles of codes: pieces of as many tiles, each of another group.
  struct Block {
    size_t first, tiles, pieces;
  };

  /// Where the sums of a step belong.
  struct Place {
    float* output;        // of the first row and column
    const float* scales;  // of the first group and column
    const float* steps;   // of the first group and row
    size_t pieces;        // 0 for no step
    bool is_first;        // nothing was added before
  };

  template <class MakePairs>
  void Expand(const MakePairs& make, size_t tile, Codes& expanded) const {
    constexpr size_t kUnit = UnitCodes(kBits);
    const size_t group = tile / w_.pair_tiles();
    const size_t begin = tile % w_.pair_tiles() * kAmxPairDepth;
    const size_t depth = halves_ ? kAmxPairDepth / 2 : kAmxPairDepth;
    for (size_t c = 0; c < kFewBitsStrip; c += kLanes) {
      const auto pairs = make(columns_.scales + group * kFewBitsStrip + c);
      const uint8_t* codes =
          columns_.codes + (group * w_.padded + begin) / kUnit * kUnitBytes<kBits> + c * 4;
      uint32_t* to = expanded[c / kAmxColumns] + c % kAmxColumns +
                     (halves_ ? group % 2 * depth * kAmxColumns / 2 : 0);
      for (size_t k = 0; k < depth; k += kUnit, codes += kUnitBytes<kBits>) {
        const bool any = begin + k < w_.padded;
#pragma GCC unroll 8
        for (size_t n = 0; n < kUnitWords<kBits>; ++n) {
          const Words word = any ? UnitWord<kBits>(codes, n) : hn::Zero(WordTag());
#pragma GCC unroll 8
          for (size_t i = 0; i < kWordCodes<kBits> / 2; ++i, to += kAmxColumns) {
            hn::StoreU(any ? pairs(word, i) : word, WordTag(), to);
          }
        }
      }
    }
  }

  /// Multiplies rows by a block. The sums of the last two steps are left to the next call.
  HWY_NOINLINE void Multiply(const Block& block, size_t steps) {
    const size_t group = block.first / w_.pair_tiles();
    const size_t row_bytes = w_.row_tiles() * kParts * kAmxBytes;
    float* const scales = scales_[block_];
    for (size_t c = 0; c < block.pieces * kFewBitsStrip; c += kLanes) {
      const Floats scale = ScalesOf(w_, columns_.scales + group * kFewBitsStrip + c);
      hn::Store(scale, FloatTag(), scales + c);
    }
    const auto* left =
        static_cast<const uint8_t*>(rows_.left) + (block.first >> halves_) * kParts * kAmxBytes;
    // Copies in registers: stores to tiles could change members.
    Place previous = previous_, before = before_;
    constexpr size_t kRowSteps = kStripTiles / kWide;
    const size_t begin = group * w_.padded + block.first % w_.pair_tiles() * kAmxPairDepth;
    const size_t depth = block.pieces * HWY_MIN(block.tiles * kAmxPairDepth, w_.padded);
    GroupsAhead ahead(w_, columns_, begin, depth, block.pieces, kRowSteps * kPieces);
    for (size_t step = 0; step < steps; ++step, turn_ = 1 - turn_) {
      const size_t row = step / kRowSteps, tile = step % kRowSteps * kWide;
      const Place place = {rows_.output + row * kAmxRows * kFewBitsStrip + tile * kAmxColumns,
                           scales + tile * kAmxColumns,
                           kSteps ? rows_.steps + group * rows_.stride + row * kAmxRows : nullptr,
                           block.pieces, block.first == 0};
      if (step == kRowSteps) ahead = {};
      Totals totals;
      MultiplyPieces<0>(block, left + row * row_bytes, tile, previous, before, ahead, totals);
      before = previous;
      previous = place;
    }
    previous_ = previous;
    before_ = before;
    block_ = 1 - block_;
  }

  /// The pieces of a step from kPiece on.
  template <size_t kPiece>
  HWY_INLINE void MultiplyPieces(const Block& block, const uint8_t* left, size_t tile,
                                 const Place& previous, const Place& before, GroupsAhead& ahead,
                                 Totals& totals) {
    if constexpr (kPiece < kPieces) {
      constexpr size_t kSum = kPiece * kWide;
      if (kPiece < previous.pieces) {
        tiles_.template Store<kSum>(sums_[turn_][kSum], kAmxRowBytes);
        if constexpr (kWide > 1) {
          tiles_.template Store<kSum + 1>(sums_[turn_][kSum + 1], kAmxRowBytes);
        }
      }
      if (kPiece < block.pieces) {
        tiles_.template Zero<kSum>();
        if constexpr (kWide > 1) tiles_.template Zero<kSum + 1>();
        for (size_t i = kPiece * block.tiles; i < (kPiece + 1) * block.tiles; ++i) {
          MultiplyTile<kSum>(left + (i >> halves_) * kParts * kAmxBytes, codes_[i], tile);
        }
      }
      ahead.Fetch();
      if (before.pieces > 0) {
        AddScaled<kSum>(before, totals);
        if constexpr (kWide > 1) AddScaled<kSum + 1>(before, totals);
      }
      MultiplyPieces<kPiece + 1>(block, left, tile, previous, before, ahead, totals);
    }
  }

  template <size_t kSum>
  HWY_INLINE void MultiplyTile(const uint8_t* left, const Codes& codes, size_t tile) {
    constexpr int kTurn = kSum / kWide % 2, kCodes = kWide > 1 ? 4 : 4 + kTurn;
    tiles_.template Load<kCodes>(codes[tile], kAmxRowBytes);
    if constexpr (kWide > 1) tiles_.template Load<5>(codes[tile + 1], kAmxRowBytes);
    AddPart<kSum, 6 + kTurn, kCodes>(left);
    if constexpr (kParts > 1) AddPart<kSum, 7 - kTurn, kCodes>(left + kAmxBytes);
    if constexpr (kParts > 2) AddPart<kSum, 6 + kTurn, kCodes>(left + 2 * kAmxBytes);
  }

  template <size_t kSum, int kLeft, int kCodes>
  HWY_INLINE void AddPart(const uint8_t* left) {
    tiles_.template Load<kLeft>(left, kAmxRowBytes);
    tiles_.template AddPairs<kSum, kLeft, kCodes>();
    if constexpr (kWide > 1) tiles_.template AddPairs<kSum + 1, kLeft, 5>();
  }

  /// Adds sum kItem of a step to the totals, in the order of columns and then of pieces: totals of
  /// a tile of columns are in registers.
  template <size_t kItem>
  HWY_INLINE void AddScaled(const Place& place, Totals& totals) const {
    constexpr size_t kColumn = kItem / kPieces * kAmxColumns, kPiece = kItem % kPieces;
    const FloatTag d;
    const float* HWY_RESTRICT sums = sums_[1 - turn_][kPiece * kWide + kItem / kPieces];
    const float* HWY_RESTRICT steps = kSteps ? place.steps + kPiece * rows_.stride : nullptr;
#pragma GCC unroll 4
    for (size_t v = 0; v < kVecs; ++v) {
      float* const output = place.output + kColumn + v * kLanes;
#pragma GCC unroll 16
      for (size_t r = 0; kPiece == 0 && r < kAmxRows; ++r) {
        totals[r][v] = place.is_first ? hn::Zero(d) : hn::Load(d, output + r * kFewBitsStrip);
      }
      if (kPiece < place.pieces) {
        const Floats scale =
            hn::Load(d, place.scales + kPiece * kFewBitsStrip + kColumn + v * kLanes);
#pragma GCC unroll 16
        for (size_t r = 0; r < kAmxRows; ++r) {
          const Floats factor = kSteps ? hn::Mul(scale, hn::Set(d, steps[r])) : scale;
          const Floats sum = hn::Load(d, sums + r * kAmxColumns + v * kLanes);
          totals[r][v] = hn::MulAdd(sum, factor, totals[r][v]);
        }
      }
#pragma GCC unroll 16
      for (size_t r = 0; kPiece == kPieces - 1 && r < kAmxRows; ++r) {
        hn::Store(totals[r][v], d, output + r * kFewBitsStrip);
      }
    }
  }

  const FewBitsWeight& w_;
  const FewBitsParts& rows_;
  const Columns columns_;
  const size_t all_;   // tiles of codes of a column
  const bool halves_;  // two groups are in a tile of rows
  size_t turn_ = 0, block_ = 0;
  Place previous_ = {}, before_ = {};
  Tiles tiles_;
  alignas(64) float scales_[2][kPieces * kFewBitsStrip];  // of even and odd blocks
  alignas(64) Codes codes_[kBlockTiles];
  alignas(64) Sums sums_[2];  // of even and odd steps
};

template <class Tiles, size_t kBits>
void TileParts(const FewBitsWeight& w, const FewBitsParts& rows) {
  WithPairs<kBits>(w, [&](const auto& make) HWY_ATTR {
    if (rows.steps != nullptr) return PartsStrip<Tiles, kBits, 1, true>(w, rows).Run(make);
    if (rows.parts == 1) return PartsStrip<Tiles, kBits, 1, false>(w, rows).Run(make);
    if (rows.parts == 2) return PartsStrip<Tiles, kBits, 2, false>(w, rows).Run(make);
    PartsStrip<Tiles, kBits, 3, false>(w, rows).Run(make);
  });
}

template <class Tiles>
void FewBitsPartsInTiles(const FewBitsWeight& w, const FewBitsParts& rows) {
  if (w.bits == 2) return TileParts<Tiles, 2>(w, rows);
  if (w.bits == 4) return TileParts<Tiles, 4>(w, rows);
  if (w.bits == 5) return TileParts<Tiles, 5>(w, rows);
  if (w.bits == 6) return TileParts<Tiles, 6>(w, rows);
  TileParts<Tiles, 8>(w, rows);
}

inline void RoundPairs(const FewBitsWeight& w, const float* rows, size_t count, void* tiles,
                       float* HWY_RESTRICT steps, float* HWY_RESTRICT sums, size_t stride) {
  auto* const out = static_cast<uint8_t*>(tiles);
  if (count < kAmxRows) hwy::ZeroBytes(out, w.row_tiles() * kAmxBytes);
  const size_t depth = kAmxPairDepth / w.tile_groups();
  for (size_t row = 0; row < count; ++row) {
    const float* x = rows + row * w.groups * w.group;
    for (size_t g = 0; g < w.groups; ++g, x += w.group) {
      const RoundedGroup group(x, w.group);
      steps[g * stride + row] = group.step;
      Floats sum = hn::Zero(FloatTag());
      const size_t at = g * depth;
      uint8_t* const to =
          out + at / kAmxPairDepth * kAmxBytes + row * kAmxRowBytes + at % kAmxPairDepth * 2;
      for (size_t k = 0; k < depth; k += kTwoVectors) {
        const Floats first = group.From(k), second = group.From(k + kLanes);
        sum = hn::Add(sum, hn::Add(first, second));
        hn::StoreN(PairsOf(first, second), WordTag(), reinterpret_cast<uint32_t*>(to + k * 2),
                   HWY_MIN(kLanes, depth / 2));
      }
      if (w.minimums != nullptr) sums[g * stride + row] = hn::ReduceSum(FloatTag(), sum);
    }
  }
}

#endif

inline FewBitsPartsKernel SelectFewBitsParts() { return nullptr; }
inline FewBitsSplitKernel SelectFewBitsSplit() { return nullptr; }
inline RoundPairsKernel SelectRoundPairs() { return nullptr; }

inline FewBitsPartsKernel SelectFewBitsPartsOfAmx() {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kHasTiles) return FewBitsPartsInTiles<KernelTiles>;
#endif
  return nullptr;
}

inline FewBitsSplitKernel SelectFewBitsSplitOfAmx() {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kHasTiles) return SplitIntoParts;
#endif
  return nullptr;
}

inline RoundPairsKernel SelectRoundPairsOfAmx() {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kHasTiles) return RoundPairs;
#endif
  return nullptr;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
