// Packs the factors of matrix products in the order in which they are read. Included once per
// target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATHER_MM_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATHER_MM_PACK_INL_H_
#undef COREAI_KERNELS_GATHER_MM_PACK_INL_H_
#else
#define COREAI_KERNELS_GATHER_MM_PACK_INL_H_
#endif

#include "kernels/gather_mm/gather_mm_tile-inl.h"
#include "simd/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Transposes `count` elements of up to as many rows as a vector has lanes, from in[i] + offset, to
/// out[k * stride + i]. Columns of missing rows are written, as zeros, only within `width`.
template <typename T>
HWY_INLINE void TransposeRows(const T* const* HWY_RESTRICT in, size_t offset, size_t rows,
                              size_t count, size_t width, size_t stride,
                              Wide<T>* HWY_RESTRICT out) {
  const hn::ScalableTag<Wide<T>> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  for (size_t k = 0; k < count; k += kLanes) {
    const size_t n = HWY_MIN(kLanes, count - k);
    hn::Vec<decltype(d)> x[kLanes];
#pragma GCC unroll 16
    for (size_t i = 0; i < kLanes; ++i) {
      if (i >= rows) {
        x[i] = hn::Zero(d);
      } else if (n == kLanes) {
        x[i] = LoadWide(d, in[i] + offset + k);
      } else {
        x[i] = LoadWideN(d, in[i] + offset + k, n);
      }
    }
    Transpose(d, x);
#pragma GCC unroll 16
    for (size_t i = 0; i < kLanes; ++i) {
      if (i < n) hn::StoreN(x[i], d, out + (k + i) * stride, width);
    }
  }
}

/// Packs tiles of rows, each as [depth, rows of the tile].
template <typename W>
void PackLeft(const void* const* left, size_t rows, size_t depth, void* packed) {
  constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<W>());
  const auto* in = reinterpret_cast<const W* const*>(left);
  const TileRows tiles(rows);
  for (size_t tile = 0; tile < tiles.tiles; ++tile) {
    const size_t first = tiles.First(tile);
    const size_t height = tiles.First(tile + 1) - first;
    for (size_t i = 0; i < height; i += kLanes) {
      const size_t here = HWY_MIN(kLanes, height - i);
      TransposeRows(in + first + i, 0, here, depth, here, height,
                    static_cast<W*>(packed) + first * depth + i);
    }
  }
}

/// Packs [depth, kVecs vectors] of a matrix [depth, columns], widened, with zeros after the last
/// column.
template <size_t kVecs, typename T>
void PackRows(const T* HWY_RESTRICT in, size_t stride, size_t depth, size_t width,
              Wide<T>* HWY_RESTRICT panel) {
  const hn::ScalableTag<Wide<T>> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  for (size_t k = 0; k < depth; ++k) {
#pragma GCC unroll 4
    for (size_t v = 0; v + 1 < kVecs; ++v) {
      hn::Store(LoadWide(d, in + v * kLanes), d, panel + v * kLanes);
    }
    const size_t last = (kVecs - 1) * kLanes;
    hn::Store(LoadWideN(d, in + last, width - last), d, panel + last);
    in += stride;
    panel += kVecs * kLanes;
  }
}

/// The same for a matrix [columns, stride].
template <size_t kVecs, typename T>
void PackColumns(const T* HWY_RESTRICT in, size_t stride, size_t depth, size_t width,
                 Wide<T>* HWY_RESTRICT panel) {
  constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<Wide<T>>());
  for (size_t v = 0; v < kVecs; ++v) {
    const size_t here = HWY_MIN(kLanes, width - v * kLanes);
    const T* columns[kLanes];
    for (size_t i = 0; i < kLanes; ++i)
      columns[i] = in + (v * kLanes + (i < here ? i : 0)) * stride;
    TransposeRows(columns, 0, here, depth, kLanes, kVecs * kLanes, panel + v * kLanes);
  }
}

/// Packs panels of columns, each as [depth, width]; the panel that begins at column c is at packed
/// + c * depth. The last panel has as many vectors as it needs, padded with zeros.
template <typename T, bool kTransposed>
void PackRight(const void* right, size_t depth, size_t columns, void* packed) {
  using W = Wide<T>;
  constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<W>());
  const auto* in = static_cast<const T*>(right);
  for (size_t column = 0; column < columns; column += kPanelWidth<W>) {
    T* HWY_RESTRICT out = static_cast<T*>(packed) + column * depth;
    const size_t count = HWY_MIN(kPanelWidth<W>, columns - column);
    const size_t width = (count + kLanes - 1) / kLanes * kLanes;
    // Short segments, so that the written cache lines stay in the cache for all columns.
    constexpr size_t kStretch = 64;
    for (size_t first = 0; first < depth; first += kStretch) {
      const size_t last = HWY_MIN(depth, first + kStretch);
      if (count < width) hwy::ZeroBytes(out + first * width, (last - first) * width * sizeof(T));
      for (size_t c = 0; kTransposed && c < count; ++c) {
        const T* from = in + (column + c) * depth;
        for (size_t k = first; k < last; ++k) hwy::CopySameSize(from + k, out + k * width + c);
      }
      for (size_t k = first; !kTransposed && k < last; ++k) {
        hwy::CopyBytes(in + k * columns + column, out + k * width, count * sizeof(T));
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
