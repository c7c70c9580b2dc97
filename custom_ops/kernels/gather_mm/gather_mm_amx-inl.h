// Products of bfloat16 by tile registers. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATHER_MM_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATHER_MM_AMX_INL_H_
#undef COREAI_KERNELS_GATHER_MM_AMX_INL_H_
#else
#define COREAI_KERNELS_GATHER_MM_AMX_INL_H_
#endif

#include "kernels/gather_mm/gather_mm_many-inl.h"
#include "simd/amx_pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Packs rows as [rows / 16, depth / 32] tiles.
inline void PackAmxLeft(const void* const* left, size_t rows, size_t depth, void* packed) {
  const auto row = [&](size_t r) {
    return r < rows ? static_cast<const hwy::bfloat16_t*>(left[r]) : nullptr;
  };
  PackAmxRows(row, RoundUp(rows, kAmxRows), depth, static_cast<std::uint32_t*>(packed));
}

/// Packs the tile of columns [column, column + 16) and of elements [k, k + 32) of the depth of a
/// matrix: [depth, columns], or [columns, depth] if kTransposed.
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

/// Packs a matrix as [columns / 16, depth / 32] tiles.
template <bool kTransposed>
void PackAmxRight(const void* right, size_t depth, size_t columns, void* packed) {
  auto* out = static_cast<std::uint32_t*>(packed);
  for (size_t column = 0; column < columns; column += kAmxColumns) {
    for (size_t k = 0; k < depth; k += kAmxPairDepth, out += kAmxWords) {
      PackAmxRightTile<kTransposed>(static_cast<const hwy::bfloat16_t*>(right), depth, columns,
                                    column, k, out);
    }
  }
}

/// Multiplies blocks of 32 columns one after the other, each by all rows while it is in the cache.
/// Sums of the whole depth stay in tile registers, unless the matrix has to be packed first: then
/// its depth is processed in chunks.
template <class Tiles, GatherMmLayout kLayout>
class AmxProduct {
 public:
  AmxProduct(const GatherMmTile& t, void* scratch)
      : t_(t),
        steps_(RoundUp(t.depth, kAmxPairDepth) / kAmxPairDepth),
        sums_(static_cast<float*>(scratch)),
        panel_(reinterpret_cast<std::uint32_t*>(sums_ + kSums)) {
    static_assert((kSums + 2 * kChunk * kAmxWords) * 4 <= kGatherMmScratchBytes,
                  "scratch is too small");
    static_assert(kGatherMmColumnStep % kAmxColumns == 0, "whole tiles");
  }

  void Run() {
    constexpr size_t kWidth = 2 * kAmxColumns;
    for (size_t column = t_.first_column; column < t_.last_column; column += kWidth) {
      if (t_.last_column - column > kAmxColumns) {
        Columns<2>(column, HWY_MIN(kWidth, t_.last_column - column));
      } else {
        Columns<1>(column, t_.last_column - column);
      }
    }
  }

 private:
  static constexpr size_t kSums = kGatherMmMaxRows * 2 * kAmxColumns;
  static constexpr size_t kChunk = 128;  // tiles of depth that are packed together
  static constexpr bool kPacked = kLayout == GatherMmLayout::kPacked;
  static constexpr size_t kTilesAhead = 4;  // of a packed matrix

  template <size_t kRights>
  void Columns(size_t column, size_t width) {
    const size_t chunk = kPacked ? steps_ : kChunk;
    for (size_t step = 0; step < steps_; step += chunk) {
      const size_t count = HWY_MIN(chunk, steps_ - step);
      const std::uint32_t* right = Right<kRights>(column, step, count);
      for (size_t row = 0; row < t_.rows; row += 2 * kAmxRows) {
        if (t_.rows - row > kAmxRows) {
          Block<2, kRights>(row, step, count, right);
        } else {
          Block<1, kRights>(row, step, count, right);
        }
      }
    }
    for (size_t row = 0; row < t_.rows; ++row) {
      NarrowRow(sums_ + row * kRights * kAmxColumns, width,
                static_cast<hwy::bfloat16_t*>(t_.output[row]) + column);
    }
  }

  /// The tiles of the matrix: kRights times `count`, or times steps_ if the matrix is packed.
  template <size_t kRights>
  const std::uint32_t* Right(size_t column, size_t step, size_t count) {
    if constexpr (kPacked) {
      return static_cast<const std::uint32_t*>(t_.right) +
             (column / kAmxColumns * steps_ + step) * kAmxWords;
    }
    constexpr bool kTransposed = kLayout == GatherMmLayout::kTransposed;
    std::uint32_t* out = panel_;
    for (size_t tile = 0; tile < kRights; ++tile) {
      for (size_t i = 0; i < count; ++i, out += kAmxWords) {
        PackAmxRightTile<kTransposed>(static_cast<const hwy::bfloat16_t*>(t_.right), t_.depth,
                                      t_.columns, column + tile * kAmxColumns,
                                      (step + i) * kAmxPairDepth, out);
      }
    }
    return panel_;
  }

  template <size_t kLefts, size_t kRights>
  void Block(size_t row, size_t step, size_t count, const std::uint32_t* HWY_RESTRICT right) {
    const size_t right_distance = (kPacked ? steps_ : count) * kAmxWords;
    const size_t left_distance = steps_ * kAmxWords;
    const std::uint32_t* left = static_cast<const std::uint32_t*>(t_.packed_left) +
                                (row / kAmxRows * steps_ + step) * kAmxWords;
    float* sums = sums_ + row * kRights * kAmxColumns;
    if (step == 0) {
      ZeroSums(tiles_);
    } else {
      LoadSums<kLefts, kRights>(tiles_, sums);
    }
    for (size_t i = 0; i < count; ++i, left += kAmxWords, right += kAmxWords) {
      if (kPacked && row == 0) Prefetch<kRights>(right, right_distance);
      LoadLefts<kLefts>(tiles_, left, left_distance);
      LoadRights<kRights>(tiles_, right, right_distance, kAmxRowBytes);
      AddProducts<kLefts, kRights>(tiles_);
    }
    StoreSums<kLefts, kRights>(tiles_, sums);
  }

  template <size_t kRights>
  static HWY_INLINE void Prefetch(const std::uint32_t* HWY_RESTRICT right, size_t distance) {
    for (size_t tile = 0; tile < kRights; ++tile) {
      const char* ahead =
          reinterpret_cast<const char*>(right + tile * distance + kTilesAhead * kAmxWords);
      for (size_t at = 0; at < kAmxBytes; at += 64) __builtin_prefetch(ahead + at);
    }
  }

  const GatherMmTile& t_;
  const size_t steps_;  // tiles of depth
  float* const sums_;
  std::uint32_t* const panel_;
  Tiles tiles_;
};

template <class Tiles, GatherMmLayout kLayout>
void GatherMmOfTiles(const GatherMmTile& t, void* scratch) {
  if (t.rows != 0) AmxProduct<Tiles, kLayout>(t, scratch).Run();
}

template <class Tiles>
GatherMmKernel GatherMmOfTilesFor(GatherMmLayout layout) {
  switch (layout) {
    case GatherMmLayout::kRows:
      return GatherMmOfTiles<Tiles, GatherMmLayout::kRows>;
    case GatherMmLayout::kTransposed:
      return GatherMmOfTiles<Tiles, GatherMmLayout::kTransposed>;
    case GatherMmLayout::kPacked:
      return GatherMmOfTiles<Tiles, GatherMmLayout::kPacked>;
  }
  return nullptr;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
