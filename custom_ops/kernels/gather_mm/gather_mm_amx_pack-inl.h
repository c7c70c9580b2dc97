// Packs the factors of products by tile registers. Included once per target.
//
// Two tiles that are multiplied together are adjacent: [pairs of tiles, depth / 32, tiles of a
// pair], where the last pair may be a single tile. Rows of float16 have the tiles of both parts of
// a pair, the high ones first (simd/amx_split-inl.h).

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATHER_MM_AMX_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATHER_MM_AMX_PACK_INL_H_
#undef COREAI_KERNELS_GATHER_MM_AMX_PACK_INL_H_
#else
#define COREAI_KERNELS_GATHER_MM_AMX_PACK_INL_H_
#endif

#include "kernels/gather_mm/gather_mm.h"
#include "simd/amx_pack-inl.h"
#include "simd/amx_split-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Rows or columns of a pair of tiles.
inline constexpr size_t kAmxPair = 2 * kAmxRows;

/// Tiles of bfloat16 that a tile of T is split into.
template <typename T>
inline constexpr size_t kAmxParts = hwy::IsSame<T, hwy::float16_t>() ? 2 : 1;

constexpr size_t AmxSteps(size_t depth) { return RoundUp(depth, kAmxPairDepth) / kAmxPairDepth; }

/// Number of tiles of the pair that begins at `first` of `count` rows or columns.
constexpr size_t AmxTilesOfPair(size_t first, size_t count) {
  return count - first > kAmxRows ? 2 : 1;
}

/// Packs one row of bfloat16; tiles of consecutive steps are `distance` words apart.
inline void PackAmxLeftRow(const hwy::bfloat16_t* HWY_RESTRICT row, size_t depth, size_t distance,
                           size_t /*part*/, std::uint32_t* HWY_RESTRICT out) {
  const hn::ScalableTag<float> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  for (size_t k = 0; k < depth; k += kAmxPairDepth, out += distance) {
    for (size_t lane = 0; lane < kAmxColumns; lane += kLanes) {
      const size_t at = k + 2 * lane;
      const auto x = at < depth ? LoadPairs(d, row + at, depth - at) : hn::Zero(d);
      hn::Store(x, d, reinterpret_cast<float*>(out + lane));
    }
  }
}

/// The same for numbers of float16, given in float32. The other part's tile is `part` words after.
inline void PackAmxLeftRow(const float* HWY_RESTRICT row, size_t depth, size_t distance,
                           size_t part, std::uint32_t* HWY_RESTRICT out) {
  const hn::ScalableTag<float> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  const auto load = [&](size_t at) HWY_ATTR {
    if (at + kLanes <= depth) return hn::LoadU(d, row + at);
    return at < depth ? hn::LoadN(d, row + at, depth - at) : hn::Zero(d);
  };
  for (size_t k = 0; k < depth; k += kAmxPairDepth, out += distance) {
    for (size_t i = 0; i < kAmxPairDepth; i += 2 * kLanes) {
      StoreParts(d, load(k + i), load(k + i + kLanes), reinterpret_cast<std::uint16_t*>(out) + i,
                 reinterpret_cast<std::uint16_t*>(out + part) + i);
    }
  }
}

/// Packs the rows of a product of type T: bfloat16, or for float16 float32 with the same numbers.
template <typename T>
void PackAmxLeft(const void* const* left, size_t rows, size_t depth, void* packed) {
  using Row = hwy::If<kAmxParts<T> == 2, float, T>;
  const size_t padded = RoundUp(rows, kAmxRows);
  for (size_t r = 0; r < padded; ++r) {
    const size_t pair = r / kAmxPair * kAmxPair;
    const size_t tiles = AmxTilesOfPair(pair, padded);
    std::uint32_t* out =
        static_cast<std::uint32_t*>(packed) +
        (pair / kAmxRows * AmxSteps(depth) * kAmxParts<T> + r / kAmxRows % 2) * kAmxWords +
        r % kAmxRows * kAmxColumns;
    if (r < rows) {
      PackAmxLeftRow(static_cast<const Row*>(left[r]), depth, tiles * kAmxParts<T> * kAmxWords,
                     tiles * kAmxWords, out);
      continue;
    }
    for (size_t i = 0; i < AmxSteps(depth) * kAmxParts<T>; ++i, out += tiles * kAmxWords) {
      hwy::ZeroBytes(out, kAmxRowBytes);
    }
  }
}

/// Packs the tile of columns [column, column + 16) and of elements [k, k + 32) of the depth of a
/// matrix of elements of 16 bits: [depth, columns], or [columns, depth] if kTransposed.
template <bool kTransposed>
void PackAmxRightTile(const hwy::bfloat16_t* HWY_RESTRICT right, size_t depth, size_t columns,
                      size_t column, size_t k, std::uint32_t* HWY_RESTRICT out) {
  if constexpr (kTransposed) {
    const auto row = [&](size_t c) {
      return column + c < columns ? right + (column + c) * depth + k : nullptr;
    };
    PackAmxRows(row, kAmxRows, HWY_MIN(depth - k, kAmxPairDepth), out);
    TransposeAmx(out);
  } else {
    const auto row = [&](size_t i) { return i < depth ? right + i * columns : nullptr; };
    PackAmxPairs(row, k, column, columns, out);
  }
}

/// Columns and depth (in tiles) of a matrix that are packed together.
struct AmxRange {
  size_t column, end_column, step, end_step;
};

/// Packs a part of a matrix. Tiles of the same elements of the depth are packed one after the
/// other: rows of a matrix [depth, columns] are pages apart.
template <bool kTransposed>
void PackAmxRightRange(const void* right, size_t depth, size_t columns, const AmxRange& range,
                       std::uint32_t* HWY_RESTRICT out) {
  const size_t steps = range.end_step - range.step;
  for (size_t step = 0; step < steps; ++step) {
    for (size_t column = range.column; column < range.end_column; column += kAmxColumns) {
      const size_t at = column - range.column;
      const size_t pair = at / kAmxPair * kAmxPair;
      const size_t tiles = AmxTilesOfPair(pair, range.end_column - range.column);
      const size_t tile = pair / kAmxColumns * steps + step * tiles + at / kAmxColumns % 2;
      PackAmxRightTile<kTransposed>(static_cast<const hwy::bfloat16_t*>(right), depth, columns,
                                    column, (range.step + step) * kAmxPairDepth,
                                    out + tile * kAmxWords);
    }
  }
}

/// Packs a whole matrix.
template <bool kTransposed>
void PackAmxRight(const void* right, size_t depth, size_t columns, void* packed) {
  const size_t steps = AmxSteps(depth);
  auto* out = static_cast<std::uint32_t*>(packed);
  for (size_t column = 0; column < columns; column += kAmxPair) {
    const size_t end = HWY_MIN(column + kAmxPair, columns);
    PackAmxRightRange<kTransposed>(right, depth, columns, {column, end, 0, steps},
                                   out + column / kAmxColumns * steps * kAmxWords);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
