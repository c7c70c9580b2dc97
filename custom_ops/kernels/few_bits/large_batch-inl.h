// Products of many rows in float. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_FEW_BITS_LARGE_BATCH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_FEW_BITS_LARGE_BATCH_INL_H_
#undef COREAI_KERNELS_FEW_BITS_LARGE_BATCH_INL_H_
#else
#define COREAI_KERNELS_FEW_BITS_LARGE_BATCH_INL_H_
#endif

#include "kernels/few_bits/codes-inl.h"
#include "kernels/gather_mm/gather_mm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// A block of the depth: codes of one group, or whole groups.
struct DepthBlock {
  size_t first;
  size_t count;

  /// The block that begins at `k`, a multiple of kPanelDepth within its group.
  DepthBlock(const FewBitsWeight& w, size_t k) : first(k) {
    const size_t groups = kPanelDepth / w.group;
    count = groups > 0 ? HWY_MIN(groups * w.group, w.groups * w.group - k)
                       : HWY_MIN(kPanelDepth, w.group - k % w.group);
  }
};

/// Writes `count` rows of a panel of kVecs vectors, from code `at` of group `g` on.
template <size_t kBits, size_t kVecs, class MakeValue>
HWY_INLINE void DequantizeRows(const FewBitsWeight& w, const Columns (&columns)[kVecs], size_t g,
                               size_t at, size_t count, const MakeValue& make,
                               float* HWY_RESTRICT panel) {
  constexpr size_t kCodes = kWordCodes<kBits>;
  const FloatTag d;
  const size_t begin = (g * w.padded + at) / UnitCodes(kBits) * kUnitBytes<kBits>;
  const uint8_t* codes[kVecs];
  decltype(make(size_t{})) value[kVecs];
  Floats scale[kVecs];
#pragma GCC unroll 4
  for (size_t v = 0; v < kVecs; ++v) {
    codes[v] = columns[v].codes + begin;
    value[v] = make(columns[v].scales + g * kFewBitsStrip);
    scale[v] = ScalesOf(w, columns[v].scales + g * kFewBitsStrip);
  }
  for (size_t k = 0; k < count;) {
#pragma GCC unroll 1
    for (size_t word = 0; word < kUnitWords<kBits>; ++word, k += kCodes) {
      Words words[kVecs];
#pragma GCC unroll 4
      for (size_t v = 0; v < kVecs; ++v) words[v] = UnitWord<kBits>(codes[v], word);
      const auto write = [&](size_t j) HWY_ATTR {
#pragma GCC unroll 4
        for (size_t v = 0; v < kVecs; ++v) {
          hn::Store(hn::Mul(value[v](words[v], j), scale[v]), d, panel + v * kLanes);
        }
        panel += kVecs * kLanes;
      };
      if (k + kCodes <= count) {
#pragma GCC unroll 16
        for (size_t j = 0; j < kCodes; ++j) write(j);
      } else {
        for (size_t j = 0; k + j < count; ++j) write(j);
      }
    }
    for (size_t v = 0; v < kVecs; ++v) codes[v] += kUnitBytes<kBits>;
  }
}

/// Writes the rows of a block.
template <size_t kBits, size_t kVecs, class MakeValue>
HWY_NOINLINE void DequantizeBlock(const FewBitsWeight& w, const Columns (&columns)[kVecs],
                                  DepthBlock block, const MakeValue& make, float* panel) {
  size_t at = block.first % w.group;
  for (size_t g = block.first / w.group; block.count > 0; ++g, at = 0) {
    const size_t count = HWY_MIN(block.count, w.group - at);
    DequantizeRows<kBits, kVecs>(w, columns, g, at, count, make, panel);
    panel += count * kVecs * kLanes;
    block.count -= count;
  }
}

/// Multiplies all rows by a panel of kVecs vectors that begins `first` columns after the first one,
/// block by block: a block is dequantized into the first-level cache. `scratch` has a block, then
/// the sums of all rows.
template <size_t kBits, size_t kVecs, class MakeValue>
void MultiplyPanel(const FewBitsWeight& w, const FewBitsLargeBatch& rows, size_t first,
                   const MakeValue& make, float* HWY_RESTRICT scratch) {
  constexpr size_t kWidth = kVecs * kLanes;
  const size_t depth = w.groups * w.group;
  const TileRows tiles(rows.rows);
  Columns columns[kVecs];
  for (size_t v = 0; v < kVecs; ++v) {
    columns[v] = Columns(w, rows.column + first + v * kLanes);
  }
  float* const sums = scratch + kPanelDepth * kWidth;
  TileStep<float> step = {};
  step.panel = scratch;
  for (DepthBlock block(w, 0);; block = DepthBlock(w, block.first + block.count)) {
    const bool last = block.first + block.count == depth;
    DequantizeBlock<kBits, kVecs>(w, columns, block, make, step.panel);
    step.depth = block.count;
    step.width = last ? HWY_MIN(kWidth, rows.count - first) : kWidth;
    Fetch fetch;
    for (size_t tile = 0; tile < tiles.tiles; ++tile) {
      const size_t row = tiles.First(tile), count = tiles.First(tile + 1) - row;
      float* store[kSumRows];
      for (size_t i = 0; i < count; ++i) {
        store[i] = last ? rows.output + (row + i) * rows.stride + first : sums + (row + i) * kWidth;
      }
      step.left = rows.packed_left + row * depth + block.first * count;
      step.start = block.first == 0 ? nullptr : sums + row * kWidth;
      step.store = store;
      MultiplyTileRows<NoSource, kVecs>(step, count, 0, &fetch);
    }
    if (last) return;
  }
}

template <size_t kBits>
void MultiplyPanels(const FewBitsWeight& w, const FewBitsLargeBatch& rows, float* scratch) {
  constexpr size_t kWidth = kPanelVecs * kLanes;
  static_assert((kPanelDepth + kGatherMmMaxRows) * kWidth * sizeof(float) <= kFewBitsScratchBytes,
                "scratch is too small");
  WithValues<kWordBits<kBits>>(w, [&](const auto& make) HWY_ATTR {
    size_t first = 0;
    for (; first + (kPanelVecs - 1) * kLanes < rows.count; first += kWidth) {
      MultiplyPanel<kBits, kPanelVecs>(w, rows, first, make, scratch);
    }
    for (; first < rows.count; first += kLanes) {
      MultiplyPanel<kBits, 1>(w, rows, first, make, scratch);
    }
  });
}

inline void MultiplyLargeBatch(const FewBitsWeight& w, const FewBitsLargeBatch& rows,
                               void* scratch) {
  if (w.bits == 2) return MultiplyPanels<2>(w, rows, static_cast<float*>(scratch));
  if (w.bits == 4) return MultiplyPanels<4>(w, rows, static_cast<float*>(scratch));
  if (w.bits == 5) return MultiplyPanels<5>(w, rows, static_cast<float*>(scratch));
  if (w.bits == 6) return MultiplyPanels<6>(w, rows, static_cast<float*>(scratch));
  MultiplyPanels<8>(w, rows, static_cast<float*>(scratch));
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
