// Packs queries, keys and values of a tile of attention in the order of multiplication, and unpacks
// its sums to the output. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_ATTENTION_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_ATTENTION_PACK_INL_H_
#undef COREAI_KERNELS_ATTENTION_PACK_INL_H_
#else
#define COREAI_KERNELS_ATTENTION_PACK_INL_H_
#endif

#include "kernels/attention/attention_rows-inl.h"
#include "simd/pairs-inl.h"
#include "simd/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Number of elements of a row that are packed in one lane: 2 for pairs, which stay adjacent.
template <bool kPairs>
inline constexpr size_t kPerLane = kPairs ? 2 : 1;

/// Number of lanes for a row of `dim` elements.
template <bool kPairs>
constexpr size_t LanesOf(size_t dim) {
  return (dim + kPerLane<kPairs> - 1) / kPerLane<kPairs>;
}

/// Loads `n` lanes of a row, widened or in pairs; the others are zero.
template <bool kPairs, typename T, class D>
HWY_INLINE hn::Vec<D> LoadRow(D d, const T* HWY_RESTRICT p, size_t n) {
  if constexpr (kPairs) {
    return LoadPairs(d, p, n);
  } else {
    return n >= hn::Lanes(d) ? LoadWide(d, p) : LoadWideN(d, p, n);
  }
}

/// Transposes `rows` queries of a panel, `step` apart: [head_dim, width]. Lanes without a row are
/// zero. Queries are scaled, except pairs.
template <bool kPairs, typename T, typename W>
void PackQueries(const T* HWY_RESTRICT in, size_t step, size_t rows, size_t head_dim, size_t width,
                 W scale, W* HWY_RESTRICT out) {
  const hn::ScalableTag<W> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  const auto factor = hn::Set(d, scale);
  hn::Vec<decltype(d)> x[kLanes];
  for (size_t group = 0; group < width; group += kLanes) {
    const T* HWY_RESTRICT first = in + group * step;
    // A constant where all lanes have rows: their loads need no branches.
    const size_t filled = group + kLanes <= rows ? kLanes : rows > group ? rows - group : 0;
    for (size_t i = 0; i < LanesOf<kPairs>(head_dim); i += kLanes) {
      const size_t left = head_dim - i * kPerLane<kPairs>;
      const auto load = [&](size_t lane) COREAI_INLINE_LAMBDA {
        const auto row = LoadRow<kPairs>(d, first + lane * step + head_dim - left, left);
        if constexpr (kPairs) {
          return row;
        } else {
          return hn::Mul(row, factor);
        }
      };
      if (filled == kLanes && left >= kLanes * kPerLane<kPairs>) {
#pragma GCC unroll 16
        for (size_t lane = 0; lane < kLanes; ++lane) x[lane] = load(lane);
      } else {
        for (size_t lane = 0; lane < kLanes; ++lane) {
          x[lane] = lane < filled ? load(lane) : hn::Zero(d);
        }
      }
      Transpose(d, x);
      const size_t n = HWY_MIN(kLanes, LanesOf<kPairs>(left));
      for (size_t j = 0; j < n; ++j) hn::Store(x[j], d, out + (i + j) * width + group);
    }
  }
}

/// Distance from one chunk of packed keys to the next; `depth` is the length of a key.
inline size_t KeyChunk(size_t depth) {
  return (depth + kPackDepth - 1) / kPackDepth * kPackDepth * kPackRows;
}

/// Packs keys: [count / kPackRows, head_dim / kPackDepth, kPackRows, kPackDepth].
template <typename T, typename W>
void PackKeys(const AttentionTokens<T>& tokens, size_t first, size_t count, size_t head_dim,
              W* HWY_RESTRICT keys) {
  const hn::ScalableTag<W> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  for (size_t key = 0; key < count; ++key) {
    const T* HWY_RESTRICT in = tokens[first + key];
    W* out = keys + key / kPackRows * KeyChunk(head_dim) + key % kPackRows * kPackDepth;
    for (size_t i = 0; i < head_dim; i += kPackDepth, out += kPackRows * kPackDepth) {
      for (size_t lane = 0; lane < HWY_MIN(kPackDepth, head_dim - i); lane += kLanes) {
        const size_t at = i + lane;
        hn::Store(LoadRow<false>(d, in + at, head_dim - at), d, out + lane);
      }
    }
  }
}

/// Packs values: chunks of [count, up to kPackRows columns]. Without packing, the rows of most
/// value sizes would map to few sets of the first-level cache.
template <typename T, typename W>
void PackValues(const AttentionTokens<T>& tokens, size_t first, size_t count, size_t value_dim,
                W* HWY_RESTRICT out) {
  const hn::ScalableTag<W> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  // Rows one after the other, so that each cache line is read once.
  for (size_t k = 0; k < count; ++k) {
    const T* HWY_RESTRICT row = tokens[first + k];
    W* chunk = out;
    size_t column = 0;
    for (; column + kPackRows <= value_dim; column += kPackRows, chunk += count * kPackRows) {
      W* HWY_RESTRICT to = chunk + k * kPackRows;
      for (size_t i = 0; i + kLanes < kPackRows; i += kLanes) {
        hn::StoreU(LoadWide(d, row + column + i), d, to + i);
      }
      // The last vector ends at the end of the chunk, and may overlap the previous one.
      constexpr size_t kLast = kPackRows - kLanes;
      hn::StoreU(LoadWide(d, row + column + kLast), d, to + kLast);
    }
    const size_t width = value_dim - column;
    W* HWY_RESTRICT to = chunk + k * width;
    ForEachVector(d, width, [&](size_t i, auto lanes) COREAI_INLINE_LAMBDA {
      lanes.Store(lanes.Load(d, row + column + i), d, to + i);
    });
  }
}

/// Divides the sums of a panel, [value_dim, width], by the rows' totals and stores the rows, `step`
/// apart.
template <typename T, typename W>
void StorePanel(const W* HWY_RESTRICT sums, const W* HWY_RESTRICT totals, size_t rows,
                size_t value_dim, size_t width, size_t step, T* HWY_RESTRICT out) {
  const hn::ScalableTag<W> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  hn::Vec<decltype(d)> x[kLanes];
  for (size_t group = 0; group < HWY_MIN(width, rows); group += kLanes) {
    const auto total = hn::Load(d, totals + group);
    const auto factor =
        hn::IfThenZeroElse(hn::Eq(total, hn::Zero(d)), hn::Div(hn::Set(d, W{1}), total));
    for (size_t i = 0; i < value_dim; i += kLanes) {
      const size_t n = HWY_MIN(kLanes, value_dim - i);
      for (size_t j = 0; j < kLanes; ++j) {
        const W* p = sums + (i + j) * width + group;
        x[j] = j < n ? hn::Mul(hn::Load(d, p), factor) : hn::Zero(d);
      }
      Transpose(d, x);
      for (size_t lane = 0; lane < HWY_MIN(kLanes, rows - group); ++lane) {
        StoreNarrowN(x[lane], d, out + (group + lane) * step + i, n);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
