// Products of rows as sums of bfloat16 with codes, in tile registers. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_FEW_BITS_TILED_PARTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_FEW_BITS_TILED_PARTS_INL_H_
#undef COREAI_KERNELS_FEW_BITS_TILED_PARTS_INL_H_
#else
#define COREAI_KERNELS_FEW_BITS_TILED_PARTS_INL_H_
#endif

#include "kernels/few_bits/parts-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

static_assert(kFewBitsPairDepth == kAmxPairDepth && kFewBitsTileRows == kAmxRows, "one tile");

// ── values of codes ───────────────────────────────────────────────────────────────────────────
// Pair i of a unit has its codes 4q + j and 4q + j + 2, where q = i / 2 and j = i % 2: those are in
// different halves of a word, so that one shift moves both to where they are looked up.

/// Pairs of values of any kind that bfloat16 represents.
template <class Value>
struct ValuePairs {
  Value value;

  HWY_INLINE Words operator()(Words unit, size_t i) const {
    const WordTag d;
    const size_t first = i / 2 * 4 + i % 2;
    const Words low = hn::BitCast(d, value(unit, first));
    const Words high = hn::BitCast(d, value(unit, first + 2));
    return hn::Or(hn::ShiftRight<16>(low), hn::And(high, hn::Set(d, 0xFFFF0000u)));
  }
};

using HalfTag = hn::Repartition<uint16_t, WordTag>;

/// The codes of a pair in the low bits of both halves of a word.
template <size_t kBits>
HWY_INLINE Words ShiftedPair(Words unit, size_t i) {
  return hn::ShiftRightSame(unit, static_cast<int>(i % 2 * 8 + i / 2 * kBits));
}

/// Looks up both halves of a word by their low five bits.
HWY_INLINE Words LookUpPair(hn::Vec<HalfTag> table, Words index) {
  const auto indices = hn::IndicesFromVec(HalfTag(), hn::BitCast(HalfTag(), index));
  return hn::BitCast(WordTag(), hn::TableLookupLanes(table, indices));
}

/// Pairs of values in a register. It has each value twice or more often, for the bits above a code.
template <size_t kBits>
struct PairsInRegister {
  hn::Vec<HalfTag> table;

  HWY_INLINE Words operator()(Words unit, size_t i) const {
    return LookUpPair(table, ShiftedPair<kBits>(unit, i));
  }
};

/// Pairs of codes less their zero points, which have five bits.
template <size_t kBits>
struct CenteredPairs {
  hn::Vec<HalfTag> table;
  Words zeros;  ///< of the column, in both halves

  HWY_INLINE Words operator()(Words unit, size_t i) const {
    constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x10001u;
    const Words codes = hn::And(ShiftedPair<kBits>(unit, i), hn::Set(WordTag(), kMask));
    const HalfTag d;
    const auto centered = hn::Sub(hn::BitCast(d, codes), hn::BitCast(d, zeros));
    return LookUpPair(table, hn::BitCast(WordTag(), centered));
  }
};

/// The table whose element i is value(i), for i below 32.
template <class Value>
HWY_INLINE hn::Vec<HalfTag> HalfTable(const Value& value) {
  HWY_ALIGN uint16_t table[32];
  for (size_t i = 0; i < 32; ++i) {
    table[i] = static_cast<uint16_t>(hwy::BitCastScalar<uint32_t>(value(i)) >> 16);
  }
  return hn::LoadU(HalfTag(), table);
}

/// Calls `body` with a function that returns, for the index of a group's first scale, what makes
/// pairs of values of its codes.
template <size_t kBits, class Body>
HWY_INLINE void WithPairs(const FewBitsWeight& w, const Body& body) {
  if constexpr (kInRegister<kBits>) {
    if (w.palette != nullptr || w.zeros == nullptr) {
      const auto table = HalfTable([&](size_t i) {
        const size_t code = i % (size_t{1} << kBits);
        return w.palette != nullptr ? w.palette[code] : static_cast<float>(code) - w.zero;
      });
      return body([&](size_t) HWY_ATTR { return PairsInRegister<kBits>{table}; });
    }
    if (w.IsWithin(-16, 15)) {
      const auto table =
          HalfTable([](size_t i) { return static_cast<float>(i) - (i < 16 ? 0.0f : 32.0f); });
      return body([&](size_t at) HWY_ATTR {
        const Ints zeros = hn::NearestInt(hn::LoadU(FloatTag(), w.zeros + at));
        const Words both = hn::Mul(hn::BitCast(WordTag(), zeros), hn::Set(WordTag(), 0x10001u));
        return CenteredPairs<kBits>{table, both};
      });
    }
  }
  WithValues<kBits>(w, [&](const auto& make) HWY_ATTR {
    body([&](size_t at) HWY_ATTR { return ValuePairs<decltype(make(at))>{make(at)}; });
  });
}

// ── products ──────────────────────────────────────────────────────────────────────────────────

/// Multiplies rows by a strip. A group is cut into pieces of few tiles, so that any group fits.
/// Some pieces are expanded at a time, and all rows are multiplied by them: a step multiplies 32
/// rows by 32 columns and a piece. Between its first products the sums of the step before are
/// stored, and vector instructions scale those of the step before that, so that neither takes time
/// (docs/internals/performance_log.md, "Few-bit weights").
template <class Tiles, size_t kBits, size_t kParts>
class PartsStrip {
 public:
  PartsStrip(const FewBitsWeight& w, const FewBitsParts& rows)
      : w_(w), rows_(rows), columns_(w, rows.column), all_(w.groups * w.pair_tiles()) {}

  template <class MakePairs>
  void Run(const MakePairs& make) {
    const size_t tiles = (rows_.rows + kAmxRows - 1) / kAmxRows;
    hwy::ZeroBytes(rows_.output, tiles * kAmxRows * kFewBitsStrip * sizeof(float));
    for (size_t tile = 0; tile < all_;) {
      size_t count = 0;
      for (; count < kPieces && tile < all_; ++count) {
        SetPiece(tile, pieces_[count]);
        tile += pieces_[count].count;
        Expand(make, pieces_[count]);
      }
      MultiplyRows(count, tiles);
    }
    const Step none = {nullptr, nullptr, 0, 0, 0, false};
    Multiply(none);
    Multiply(none);
  }

 private:
  static constexpr size_t kPieces = 2;
  static constexpr size_t kMostTiles = 2;  // of a piece
  static constexpr size_t kStripTiles = kFewBitsStrip / kAmxColumns;
  // Tiles of rows and of columns that are multiplied together.
  static constexpr size_t kHigh = 2, kWide = 2;
  using Sums = float[kHigh * kWide][kAmxRows * kAmxColumns];

  /// Consecutive tiles of a group.
  struct Piece {
    size_t first, count, group;
    alignas(64) uint32_t codes[kMostTiles][kStripTiles][kAmxBytes / 4];
  };

  /// One or two tiles of rows by two of columns, for a piece.
  struct Step {
    const Piece* piece;  // null if there is none
    float* output;       // of the first row and column
    size_t row, column;  // tiles
    size_t scales;       // of the first column
    bool is_high;        // two tiles of rows
  };

  void SetPiece(size_t first, Piece& piece) const {
    piece.first = first;
    piece.group = first / w_.pair_tiles();
    piece.count = HWY_MIN(kMostTiles, w_.pair_tiles() - first % w_.pair_tiles());
  }

  template <class MakePairs>
  void Expand(const MakePairs& make, Piece& piece) const {
    constexpr size_t kUnit = UnitCodes(kBits);
    const size_t begin = piece.first % w_.pair_tiles() * kAmxPairDepth;
    for (size_t c = 0; c < kFewBitsStrip; c += kLanes) {
      const auto pairs = make(columns_.scales + piece.group * kFewBitsStrip + c);
      const uint8_t* codes =
          columns_.codes + (piece.group * w_.padded + begin) / kUnit * kUnitBytes<kBits> + c * 4;
      for (size_t tile = 0; tile < piece.count; ++tile) {
        uint32_t* to = piece.codes[tile][c / kAmxColumns] + c % kAmxColumns;
        for (size_t k = 0; k < kAmxPairDepth; k += kUnit, codes += kUnitBytes<kBits>) {
          PrefetchUnit<kBits>(codes, 1);
          const bool any = begin + tile * kAmxPairDepth + k < w_.padded;
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
  }

  void MultiplyRows(size_t pieces, size_t end) {
    for (size_t row = 0; row < end; row += kHigh) {
      for (size_t column = 0; column < kStripTiles; column += kWide) {
        const size_t at = column * kAmxColumns;
        float* const output = rows_.output + row * kAmxRows * kFewBitsStrip + at;
        for (size_t i = 0; i < pieces; ++i) {
          const size_t scales = columns_.scales + pieces_[i].group * kFewBitsStrip + at;
          Multiply({&pieces_[i], output, row, column, scales, row + 1 < end});
        }
      }
    }
  }

  HWY_INLINE void Multiply(const Step& step) {
    const Adds adds(*this, before_);
    if (step.piece == nullptr) {
      MultiplyTile<true, true>(step, 0, adds);
    } else {
      MultiplyTile<false, true>(step, 0, adds);
      for (size_t i = 1; i < step.piece->count; ++i) MultiplyTile<false, false>(step, i, adds);
    }
    before_ = previous_;
    previous_ = step;
    turn_ = 1 - turn_;
  }

  /// Adds the sums of a step, times the scales of their group, to the output.
  struct Adds {
    static constexpr size_t kVecs = kAmxColumns / kLanes;
    const float* HWY_RESTRICT sums;
    float* HWY_RESTRICT output;
    size_t high;  // tiles of rows, 0 if there is no step
    Floats scales[kWide][kVecs];

    HWY_INLINE Adds(const PartsStrip& strip, const Step& step)
        : sums(strip.sums_[1 - strip.turn_][0]),
          output(step.output),
          high(step.piece == nullptr ? 0
               : step.is_high        ? 2
                                     : 1) {
      for (size_t i = 0; i < kWide * kVecs; ++i) {
        scales[i / kVecs][i % kVecs] = ScalesOf(strip.w_, step.scales + i * kLanes);
      }
    }

    /// Rows [kBegin, kEnd) of a tile.
    template <size_t kSum, size_t kBegin, size_t kEnd>
    HWY_INLINE void Rows() const {
      const FloatTag d;
      if (kSum / kWide >= high) return;
      float* HWY_RESTRICT out =
          output + kSum / kWide * kAmxRows * kFewBitsStrip + kSum % kWide * kAmxColumns;
      const float* HWY_RESTRICT from = sums + kSum * kAmxRows * kAmxColumns;
#pragma GCC unroll 16
      for (size_t r = kBegin; r < kEnd; ++r) {
#pragma GCC unroll 4
        for (size_t v = 0; v < kVecs; ++v) {
          const Floats sum = hn::Load(d, from + r * kAmxColumns + v * kLanes);
          const Floats total = hn::Load(d, out + r * kFewBitsStrip + v * kLanes);
          hn::Store(hn::MulAdd(sum, scales[kSum % kWide][v], total), d,
                    out + r * kFewBitsStrip + v * kLanes);
        }
      }
    }
  };

  /// Multiplies by a tile of the piece. The first one also stores and scales sums.
  template <bool kNone, bool kStores>
  HWY_INLINE void MultiplyTile(const Step& step, size_t tile, const Adds& adds) {
    const size_t row_bytes = all_ * kParts * kAmxBytes;
    const uint8_t* left = static_cast<const uint8_t*>(rows_.left);
    if constexpr (!kNone) {
      left += step.row * row_bytes + (step.piece->first + tile) * kParts * kAmxBytes;
      tiles_.template Load<6>(step.piece->codes[tile][step.column], kAmxRowBytes);
      tiles_.template Load<7>(step.piece->codes[tile][step.column + 1], kAmxRowBytes);
    }
    const uint8_t* const below = step.is_high ? left + row_bytes : nullptr;
    MultiplyPart<kNone, kStores, 0>(left, below, adds);
    if constexpr (kParts > 1) MultiplyPart<kNone, kStores, 1>(left, below, adds);
    if constexpr (kParts > 2) MultiplyPart<kNone, kStores, 2>(left, below, adds);
  }

  template <bool kNone, bool kStores, size_t kPart>
  HWY_INLINE void MultiplyPart(const uint8_t* left, const uint8_t* below, const Adds& adds) {
    constexpr size_t kAt = kPart * kAmxBytes;
    if constexpr (!kNone) tiles_.template Load<4>(left + kAt, kAmxRowBytes);
    AddProduct<0, kNone, kStores, kPart>(true, adds);
    AddProduct<1, kNone, kStores, kPart>(true, adds);
    if (below != nullptr) tiles_.template Load<5>(below + kAt, kAmxRowBytes);
    AddProduct<2, kNone, kStores, kPart>(below != nullptr, adds);
    AddProduct<3, kNone, kStores, kPart>(below != nullptr, adds);
  }

  template <size_t kSum, bool kNone, bool kStores, size_t kPart>
  HWY_INLINE void AddProduct(bool any, const Adds& adds) {
    if constexpr (kStores && kPart == 0) {
      tiles_.template Store<kSum>(sums_[turn_][kSum], kAmxRowBytes);
      tiles_.template Zero<kSum>();
    }
    if constexpr (!kNone) {
      if (any) tiles_.template AddPairs<kSum, 4 + kSum / kWide, 6 + kSum % kWide>();
    }
    if constexpr (kStores) {
      adds.template Rows<kSum, kPart * kAmxRows / kParts, (kPart + 1) * kAmxRows / kParts>();
    }
  }

  const FewBitsWeight& w_;
  const FewBitsParts& rows_;
  const Columns columns_;
  const size_t all_;  // tiles of a row
  size_t turn_ = 0;
  Step previous_ = {}, before_ = {};
  Tiles tiles_;
  Piece pieces_[kPieces];
  alignas(64) Sums sums_[2];
};

template <class Tiles, size_t kBits>
void TileParts(const FewBitsWeight& w, const FewBitsParts& rows) {
  WithPairs<kWordBits<kBits>>(w, [&](const auto& make) HWY_ATTR {
    if (rows.parts == 1) return PartsStrip<Tiles, kBits, 1>(w, rows).Run(make);
    if (rows.parts == 2) return PartsStrip<Tiles, kBits, 2>(w, rows).Run(make);
    PartsStrip<Tiles, kBits, 3>(w, rows).Run(make);
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

#endif

inline FewBitsPartsKernel SelectFewBitsParts() { return nullptr; }
inline FewBitsSplitKernel SelectFewBitsSplit() { return nullptr; }

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

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
