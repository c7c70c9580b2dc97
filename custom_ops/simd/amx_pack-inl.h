// Packs rows of bfloat16 as tiles, and multiplies blocks of two by two tiles. Included once per
// target.

#include "hwy/highway.h"

#if defined(COREAI_SIMD_AMX_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_SIMD_AMX_PACK_INL_H_
#undef COREAI_SIMD_AMX_PACK_INL_H_
#else
#define COREAI_SIMD_AMX_PACK_INL_H_
#endif

#include "simd/amx-inl.h"
#include "simd/pairs-inl.h"
#include "simd/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

constexpr size_t RoundUp(size_t x, size_t step) { return (x + step - 1) / step * step; }

/// 32-bit words of a tile.
inline constexpr size_t kAmxWords = kAmxBytes / 4;

// ── packing ───────────────────────────────────────────────────────────────────────────────────
// `row(i)` is the address of row i, or null for a row of zeros. Elements beyond the last one are
// zero in tiles, and are not read.

/// Packs `rows` rows, a multiple of 16, as [rows / 16, size / 32] tiles whose rows they are.
template <class Row>
void PackAmxRows(const Row& row, size_t rows, size_t size, std::uint32_t* HWY_RESTRICT out) {
  const hn::ScalableTag<float> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  const size_t tiles = RoundUp(size, kAmxPairDepth) / kAmxPairDepth;
  for (size_t r = 0; r < rows; ++r) {
    std::uint32_t* to = out + r / kAmxRows * tiles * kAmxWords + r % kAmxRows * kAmxColumns;
    const hwy::bfloat16_t* from = row(r);
    for (size_t tile = 0; tile < tiles; ++tile, to += kAmxWords) {
      for (size_t lane = 0; lane < kAmxColumns; lane += kLanes) {
        const size_t at = tile * kAmxPairDepth + 2 * lane;
        const bool any = from != nullptr && at < size;
        const auto x = any ? LoadPairs(d, from + at, size - at) : hn::Zero(d);
        hn::Store(x, d, reinterpret_cast<float*>(to + lane));
      }
    }
  }
}

/// Loads up to one vector of elements of two rows, as pairs (first, second); `n` counts elements.
template <class D>
HWY_INLINE hn::Vec<D> LoadRowPair(D d, const hwy::bfloat16_t* HWY_RESTRICT first,
                                  const hwy::bfloat16_t* HWY_RESTRICT second, size_t n) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<std::uint16_t, D> d16;
  const auto load = [&](const hwy::bfloat16_t* row) HWY_ATTR {
    if (row == nullptr) return hn::Zero(du);
    const auto* bits = reinterpret_cast<const std::uint16_t*>(row);
    return hn::PromoteTo(du, n >= hn::Lanes(d16) ? hn::LoadU(d16, bits) : hn::LoadN(d16, bits, n));
  };
  return hn::BitCast(d, hn::Or(load(first), hn::ShiftLeft<16>(load(second))));
}

/// Packs rows [first, first + 32), each from `column` on, as one tile of 16 columns with pairs of
/// rows in 32 bits. `size` is that of a row.
template <class Row>
void PackAmxPairs(const Row& row, size_t first, size_t column, size_t size,
                  std::uint32_t* HWY_RESTRICT out) {
  const hn::ScalableTag<float> d;
  for (size_t lane = 0; lane < kAmxColumns; lane += hn::Lanes(d)) {
    const size_t at = column + lane;
    const size_t left = at < size ? size - at : 0;
    for (size_t pair = 0; pair < kAmxRows; ++pair) {
      const hwy::bfloat16_t* a = row(first + 2 * pair);
      const hwy::bfloat16_t* b = row(first + 2 * pair + 1);
      const bool none = left == 0;
      hn::Store(LoadRowPair(d, none || a == nullptr ? nullptr : a + at,
                            none || b == nullptr ? nullptr : b + at, left),
                d, reinterpret_cast<float*>(out + pair * kAmxColumns + lane));
    }
  }
}

/// Transposes a tile of words.
inline void TransposeAmx(const std::uint32_t* HWY_RESTRICT tile, std::uint32_t* HWY_RESTRICT to) {
  const hn::ScalableTag<float> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  const auto* words = reinterpret_cast<const float*>(tile);
  auto* out = reinterpret_cast<float*>(to);
  for (size_t row = 0; row < kAmxRows; row += kLanes) {
    for (size_t column = 0; column < kAmxColumns; column += kLanes) {
      hn::Vec<decltype(d)> x[kLanes];
      for (size_t i = 0; i < kLanes; ++i) {
        x[i] = hn::Load(d, words + (row + i) * kAmxColumns + column);
      }
      Transpose(d, x);
      for (size_t i = 0; i < kLanes; ++i) {
        hn::Store(x[i], d, out + (column + i) * kAmxColumns + row);
      }
    }
  }
}

/// The same in place.
inline void TransposeAmx(std::uint32_t* HWY_RESTRICT tile) {
  alignas(64) std::uint32_t out[kAmxWords];
  TransposeAmx(tile, out);
  hwy::CopyBytes(out, tile, kAmxBytes);
}

// ── blocks ────────────────────────────────────────────────────────────────────────────────────
// Sums of kLefts by kRights tiles (each 1 or 2) are in registers 0 to 3, tiles of rows in 4 and 5,
// tiles of columns in 6 and 7. In memory sums are [kLefts * 16, kRights * 16].

template <class Tiles>
HWY_INLINE void ZeroSums(Tiles& tiles) {
  tiles.template Zero<0>();
  tiles.template Zero<1>();
  tiles.template Zero<2>();
  tiles.template Zero<3>();
}

template <size_t kLefts, size_t kRights, class Tiles>
HWY_INLINE void LoadSums(Tiles& tiles, const float* HWY_RESTRICT sums) {
  constexpr size_t kStride = kRights * kAmxRowBytes;
  const float* below = sums + kRights * kAmxWords;
  tiles.template Load<0>(sums, kStride);
  if constexpr (kRights == 2) tiles.template Load<1>(sums + kAmxColumns, kStride);
  if constexpr (kLefts == 2) tiles.template Load<2>(below, kStride);
  if constexpr (kLefts == 2 && kRights == 2) tiles.template Load<3>(below + kAmxColumns, kStride);
}

template <size_t kLefts, size_t kRights, class Tiles>
HWY_INLINE void StoreSums(Tiles& tiles, float* HWY_RESTRICT sums) {
  constexpr size_t kStride = kRights * kAmxRowBytes;
  float* below = sums + kRights * kAmxWords;
  tiles.template Store<0>(sums, kStride);
  if constexpr (kRights == 2) tiles.template Store<1>(sums + kAmxColumns, kStride);
  if constexpr (kLefts == 2) tiles.template Store<2>(below, kStride);
  if constexpr (kLefts == 2 && kRights == 2) tiles.template Store<3>(below + kAmxColumns, kStride);
}

/// Loads tiles of rows that are `distance` words apart, contiguous.
template <size_t kLefts, class Tiles>
HWY_INLINE void LoadLefts(Tiles& tiles, const std::uint32_t* HWY_RESTRICT left, size_t distance) {
  tiles.template Load<4>(left, kAmxRowBytes);
  if constexpr (kLefts == 2) tiles.template Load<5>(left + distance, kAmxRowBytes);
}

/// Loads tiles of columns that are `distance` words apart; their rows are `stride` bytes apart.
template <size_t kRights, class Tiles>
HWY_INLINE void LoadRights(Tiles& tiles, const void* HWY_RESTRICT right, size_t distance,
                           size_t stride) {
  tiles.template Load<6>(right, stride);
  if constexpr (kRights == 2) {
    tiles.template Load<7>(static_cast<const std::uint32_t*>(right) + distance, stride);
  }
}

template <size_t kLefts, size_t kRights, class Tiles>
HWY_INLINE void AddProducts(Tiles& tiles) {
  tiles.template AddPairs<0, 4, 6>();
  if constexpr (kRights == 2) tiles.template AddPairs<1, 4, 7>();
  if constexpr (kLefts == 2) tiles.template AddPairs<2, 5, 6>();
  if constexpr (kLefts == 2 && kRights == 2) tiles.template AddPairs<3, 5, 7>();
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
