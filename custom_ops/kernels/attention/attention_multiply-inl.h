// Products of packed keys or values with a panel of rows, which lie in the lanes. Included once per
// target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_ATTENTION_MULTIPLY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_ATTENTION_MULTIPLY_INL_H_
#undef COREAI_KERNELS_ATTENTION_MULTIPLY_INL_H_
#else
#define COREAI_KERNELS_ATTENTION_MULTIPLY_INL_H_
#endif

#include "kernels/attention/attention_tiles.h"
#include "simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

// The register tile has kBlockRows<kVecs> rows of the left factor times the kVecs vectors of a
// panel: 24 accumulators of 32 registers, or 12 of 16. The overhead of a tile is its loads: 8 x 3
// vectors need 11 loads for 24 products, 12 x 2 need 14. If some vectors of a panel attend to
// nothing, the other vectors are multiplied in the same blocks.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SCALAR
inline constexpr size_t kMaxVecs = 2;
template <size_t kVecs>
inline constexpr size_t kBlockRows = 6;
#else
inline constexpr size_t kMaxVecs = 3;
template <size_t kVecs>
inline constexpr size_t kBlockRows = kVecs == 3 ? 8 : 12;
#endif
static_assert(kPackRows % kBlockRows<1> == 0 && kPackRows % kBlockRows<2> == 0 &&
                  kPackRows % kBlockRows<3> == 0,
              "a block lies in one chunk");

/// Rows of packed keys; the inner dimension is head_dim.
template <typename W>
struct PackedKeys {
  const W* first;
  size_t stride;  // from chunk to chunk

  static constexpr size_t kRowStride = kPackDepth;
  const W* At(size_t row) const {
    return first + row / kPackRows * stride + row % kPackRows * kPackDepth;
  }
  /// Calls step(p) for each index of the inner dimension, where p is At(row) advanced to it.
  template <class Step>
  HWY_INLINE void ForEach(size_t row, size_t depth, const Step& step) const {
    const W* p = At(row);
    for (; depth != 0; p += (kPackRows - 1) * kPackDepth) {
      const size_t n = HWY_MIN(kPackDepth, depth);
      for (size_t k = 0; k < n; ++k, ++p) step(p);
      depth -= n;
    }
  }
};

/// Columns of packed values, from one key on; the inner dimension is the keys.
template <typename W>
struct PackedValues {
  const W* first;
  size_t columns;
  size_t keys;     // number of packed keys
  size_t key = 0;  // first key of the inner dimension

  static constexpr size_t kRowStride = 1;
  template <class Step>
  HWY_INLINE void ForEach(size_t row, size_t depth, const Step& step) const {
    const size_t chunk = row / kPackRows * kPackRows;
    const size_t width = HWY_MIN(kPackRows, columns - chunk);
    const W* p = first + chunk * keys + key * width + row - chunk;
    for (size_t k = 0; k < depth; ++k, p += width) step(p);
  }
};

/// Part of a panel: kVecs vectors of each row, with `stride` elements between rows.
template <typename W>
struct PanelPart {
  const W* HWY_RESTRICT right;  ///< [depth, ...]
  size_t depth;
  const W* HWY_RESTRICT factor;  ///< multiplies the previous sums
  W* HWY_RESTRICT out;           ///< [rows of the left factor, ...]
  size_t stride;
};

/// The initial value of a product.
enum class Products {
  kPlain,  ///< from zero
  kAdded,  ///< from the previous output multiplied by factor
};

/// out[row + i, :] = start + sum over k of left[row + i, k] * right[k, :] for kRows rows.
template <Products kHow, size_t kRows, size_t kVecs, class Left, typename W>
HWY_INLINE void MultiplyBlock(const Left& left, size_t row, const PanelPart<W>& part) {
  const hn::ScalableTag<W> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  const size_t stride = part.stride;
  W* HWY_RESTRICT out = part.out + row * stride;
  hn::Vec<decltype(d)> sums[kRows][kVecs];
#pragma GCC unroll 12
  for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 3
    for (size_t v = 0; v < kVecs; ++v) {
      if constexpr (kHow == Products::kAdded) {
        sums[i][v] = hn::Mul(hn::Load(d, out + i * stride + v * kLanes),
                             hn::Load(d, part.factor + v * kLanes));
      } else {
        sums[i][v] = hn::Zero(d);
      }
    }
  }
  const W* HWY_RESTRICT right = part.right;
  left.ForEach(row, part.depth, [&](const W* HWY_RESTRICT p) HWY_ATTR {
    hn::Vec<decltype(d)> b[kVecs];
#pragma GCC unroll 3
    for (size_t v = 0; v < kVecs; ++v) b[v] = hn::Load(d, right + v * kLanes);
#pragma GCC unroll 12
    for (size_t i = 0; i < kRows; ++i) {
      const auto a = hn::Set(d, p[i * Left::kRowStride]);
#pragma GCC unroll 3
      for (size_t v = 0; v < kVecs; ++v) sums[i][v] = hn::MulAdd(a, b[v], sums[i][v]);
    }
    right += stride;
  });
#pragma GCC unroll 12
  for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 3
    for (size_t v = 0; v < kVecs; ++v) hn::Store(sums[i][v], d, out + i * stride + v * kLanes);
  }
}

/// MultiplyBlock for fewer than 2 * kRows rows; kRows is a power of two.
template <Products kHow, size_t kRows, size_t kVecs, class Left, typename W>
HWY_INLINE void MultiplyRest(const Left& left, size_t row, size_t rows, const PanelPart<W>& part) {
  if (rows - row >= kRows) {
    MultiplyBlock<kHow, kRows, kVecs>(left, row, part);
    row += kRows;
  }
  if constexpr (kRows > 1) MultiplyRest<kHow, kRows / 2, kVecs>(left, row, rows, part);
}

/// MultiplyBlock for rows [row, rows) in blocks of kBlock; `row` is a multiple of it.
template <Products kHow, size_t kBlock, size_t kVecs, class Left, typename W>
HWY_NOINLINE void Multiply(const Left& left, size_t row, size_t rows, const PanelPart<W>& part,
                           Ahead& ahead) {
  for (; row + kBlock <= rows; row += kBlock) {
    MultiplyBlock<kHow, kBlock, kVecs>(left, row, part);
    ahead.Fetch();
  }
  constexpr size_t kRest = kBlock > 8 ? 8 : 4;
  MultiplyRest<kHow, kRest, kVecs>(left, row, rows, part);
}

/// Multiply for `vecs` of up to kMost vectors.
template <Products kHow, size_t kBlock, size_t kMost, class Left, typename W>
HWY_INLINE void MultiplyVecs(size_t vecs, const Left& left, size_t row, size_t rows,
                             const PanelPart<W>& part, Ahead& ahead) {
  if constexpr (kMost > 1) {
    if (vecs < kMost) {
      return MultiplyVecs<kHow, kBlock, kMost - 1>(vecs, left, row, rows, part, ahead);
    }
  }
  Multiply<kHow, kBlock, kMost>(left, row, rows, part, ahead);
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
