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

/// Multiplies pairs of tiles of columns one after the other, each by all rows while it is in the
/// cache. Sums of the whole depth stay in tile registers, unless the matrix has to be packed first:
/// then several pairs share the look-ups of its pages, and its depth is processed in chunks.
template <class Tiles, GatherMmLayout kLayout>
class AmxProduct {
 public:
  AmxProduct(const GatherMmTile& t, void* scratch)
      : t_(t),
        steps_(RoundUp(t.depth, kAmxPairDepth) / kAmxPairDepth),
        sums_(static_cast<float*>(scratch)),
        panel_(reinterpret_cast<std::uint32_t*>(sums_ + kSums)) {
    static_assert((kSums + 2 * kPairs * kChunk * kAmxWords) * 4 <= kGatherMmScratchBytes,
                  "scratch is too small");
    static_assert(kGatherMmColumnStep % kAmxColumns == 0 && kGatherMmMaxRows % kHeight == 0,
                  "whole tiles");
  }

  void Run() {
    for (size_t column = t_.first_column; column < t_.last_column; column += kPairs * kWidth) {
      const size_t end = HWY_MIN(column + kPairs * kWidth, t_.last_column);
      const size_t chunk = kPacked ? steps_ : kChunk;
      for (size_t step = 0; step < steps_; step += chunk) {
        const size_t count = HWY_MIN(chunk, steps_ - step);
        if constexpr (!kPacked) Pack(column, end, step, count);
        for (size_t c = column; c < end; c += kWidth) Multiply(column, c, end, step, count);
      }
      for (size_t c = column; c < end; c += kWidth) Store(SumsOf(column, c), c, end);
    }
  }

 private:
  static constexpr bool kPacked = kLayout == GatherMmLayout::kPacked;
  static constexpr size_t kWidth = 2 * kAmxColumns;  // of a pair
  static constexpr size_t kHeight = 2 * kAmxRows;
  static constexpr size_t kPairs = kPacked ? 1 : 4;  // that are packed together
  static constexpr size_t kChunk = 24;               // tiles of depth that are packed together
  static constexpr size_t kSums = kGatherMmMaxRows * kPairs * kWidth;
  static constexpr size_t kTilesAhead = 4;  // of a packed matrix

  float* SumsOf(size_t first, size_t column) const {
    return sums_ + (column - first) * RoundUp(t_.rows, kHeight);
  }

  /// Packs tiles [step, step + count) of columns [column, end).
  void Pack(size_t column, size_t end, size_t step, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      std::uint32_t* out = panel_ + i * kAmxWords;
      for (size_t c = column; c < end; c += kAmxColumns, out += count * kAmxWords) {
        PackAmxRightTile<kLayout == GatherMmLayout::kTransposed>(
            static_cast<const hwy::bfloat16_t*>(t_.right), t_.depth, t_.columns, c,
            (step + i) * kAmxPairDepth, out);
      }
    }
  }

  /// Adds the products of the pair of tiles at `column` to the sums of all rows.
  void Multiply(size_t first, size_t column, size_t end, size_t step, size_t count) {
    const std::uint32_t* right = kPacked
                                     ? static_cast<const std::uint32_t*>(t_.right) +
                                           (column / kAmxColumns * steps_ + step) * kAmxWords
                                     : panel_ + (column - first) / kAmxColumns * count * kAmxWords;
    if (end - column > kAmxColumns) {
      Rows<2>(SumsOf(first, column), step, count, right);
    } else {
      Rows<1>(SumsOf(first, column), step, count, right);
    }
  }

  template <size_t kRights>
  void Rows(float* sums, size_t step, size_t count, const std::uint32_t* right) {
    for (size_t row = 0; row < t_.rows; row += kHeight, sums += kHeight * kRights * kAmxColumns) {
      if (t_.rows - row > kAmxRows) {
        Block<2, kRights>(sums, row, step, count, right);
      } else {
        Block<1, kRights>(sums, row, step, count, right);
      }
    }
  }

  void Store(const float* sums, size_t column, size_t end) {
    const size_t width = HWY_MIN(kWidth, end - column);
    const size_t stride = width > kAmxColumns ? kWidth : kAmxColumns;
    for (size_t row = 0; row < t_.rows; ++row) {
      NarrowRow(sums + row * stride, width, static_cast<hwy::bfloat16_t*>(t_.output[row]) + column);
    }
  }

  template <size_t kLefts, size_t kRights>
  void Block(float* sums, size_t row, size_t step, size_t count,
             const std::uint32_t* HWY_RESTRICT right) {
    const size_t right_distance = (kPacked ? steps_ : count) * kAmxWords;
    const size_t left_distance = steps_ * kAmxWords;
    const std::uint32_t* left = static_cast<const std::uint32_t*>(t_.packed_left) +
                                (row / kAmxRows * steps_ + step) * kAmxWords;
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
