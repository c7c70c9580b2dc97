// Products with few rows, bound by reading the matrix once. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATHER_MM_FEW_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATHER_MM_FEW_ROWS_INL_H_
#undef COREAI_KERNELS_GATHER_MM_FEW_ROWS_INL_H_
#else
#define COREAI_KERNELS_GATHER_MM_FEW_ROWS_INL_H_
#endif

#include "kernels/gather_mm/gather_mm.h"
#include "simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

// Number of columns whose sums stay in the first-level cache while the matrix is read.
inline constexpr size_t kFewColumns = 1024;

/// sums[r, :] += left[r][k + j] * right[k + j, :] for kDepth values of j. That many rows of the
/// matrix are read together, so that a sum is loaded and stored once for all of them. kWhole:
/// `count` is a multiple of the number of lanes.
template <size_t kRows, size_t kDepth, typename T, typename W>
HWY_INLINE void AddDepths(const W* const* HWY_RESTRICT left, size_t k, const T* HWY_RESTRICT right,
                          size_t stride, size_t count, W* HWY_RESTRICT sums) {
  const hn::ScalableTag<W> d;
  const size_t lanes = hn::Lanes(d);
  hn::Vec<decltype(d)> a[kRows][kDepth];
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (size_t j = 0; j < kDepth; ++j) a[r][j] = hn::Set(d, left[r][k + j]);
  }
  size_t c = 0;
  for (; c + lanes <= count; c += lanes) {
    hn::Vec<decltype(d)> sum[kRows];
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) sum[r] = hn::Zero(d);
#pragma GCC unroll 8
    for (size_t j = 0; j < kDepth; ++j) {
      const auto b = LoadWide(d, right + j * stride + c);
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) sum[r] = hn::MulAdd(a[r][j], b, sum[r]);
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
      W* total = sums + r * kFewColumns + c;
      hn::Store(hn::Add(sum[r], hn::Load(d, total)), d, total);
    }
  }
  if (c < count) {
    // Lanes after the last column hold zeros times a, which are not used.
    for (size_t j = 0; j < kDepth; ++j) {
      const auto b = LoadWideN(d, right + j * stride + c, count - c);
      for (size_t r = 0; r < kRows; ++r) {
        W* sum = sums + r * kFewColumns + c;
        hn::Store(hn::MulAdd(a[r][j], b, hn::Load(d, sum)), d, sum);
      }
    }
  }
}

template <size_t kRows, typename T>
void MultiplyFew(const GatherMmTile& t, void* scratch) {
  using W = Wide<T>;
  constexpr size_t kDepth = kRows <= 2 ? 8 : 4;
  const hn::ScalableTag<W> d;
  const size_t lanes = hn::Lanes(d);
  auto* sums = static_cast<W*>(scratch);
  const auto* left = reinterpret_cast<const W* const*>(t.left);
  for (size_t first = t.first_column; first < t.last_column; first += kFewColumns) {
    const size_t count = HWY_MIN(kFewColumns, t.last_column - first);
    hwy::ZeroBytes(sums, kRows * kFewColumns * sizeof(W));
    const T* right = static_cast<const T*>(t.right) + first;
    size_t k = 0;
    for (; k + kDepth <= t.depth; k += kDepth) {
      AddDepths<kRows, kDepth>(left, k, right + k * t.columns, t.columns, count, sums);
    }
    for (; k < t.depth; ++k) {
      AddDepths<kRows, 1>(left, k, right + k * t.columns, t.columns, count, sums);
    }
    for (size_t r = 0; r < kRows; ++r) {
      T* out = static_cast<T*>(t.output[r]) + first;
      for (size_t c = 0; c < count; c += lanes) {
        StoreNarrowN(hn::Load(d, sums + r * kFewColumns + c), d, out + c,
                     HWY_MIN(lanes, count - c));
      }
    }
  }
}

/// Products of a vector of columns of a transposed matrix (rows in memory) with all rows of the
/// left factor.
template <size_t kRows, size_t kColumns, typename T>
HWY_INLINE void DotColumns(const GatherMmTile& t, size_t column) {
  using W = Wide<T>;
  const hn::ScalableTag<W> d;
  const size_t lanes = hn::Lanes(d);
  const auto* left = reinterpret_cast<const W* const*>(t.left);
  const T* right = static_cast<const T*>(t.right) + column * t.depth;
  hn::Vec<decltype(d)> sums[kColumns][kRows];
#pragma GCC unroll 8
  for (size_t j = 0; j < kColumns; ++j) {
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) sums[j][r] = hn::Zero(d);
  }
  size_t k = 0;
  for (; k + lanes <= t.depth; k += lanes) {
    hn::Vec<decltype(d)> x[kRows];
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) x[r] = hn::LoadU(d, left[r] + k);
#pragma GCC unroll 8
    for (size_t j = 0; j < kColumns; ++j) {
      const auto b = LoadWide(d, right + j * t.depth + k);
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) sums[j][r] = hn::MulAdd(x[r], b, sums[j][r]);
    }
  }
  if (const size_t n = t.depth - k; n != 0) {
    hn::Vec<decltype(d)> x[kRows];
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) x[r] = hn::LoadN(d, left[r] + k, n);
#pragma GCC unroll 8
    for (size_t j = 0; j < kColumns; ++j) {
      const auto b = LoadWideN(d, right + j * t.depth + k, n);
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) sums[j][r] = hn::MulAdd(x[r], b, sums[j][r]);
    }
  }
  const hn::CappedTag<W, 1> one;
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
    T* out = static_cast<T*>(t.output[r]) + column;
#pragma GCC unroll 8
    for (size_t j = 0; j < kColumns; ++j) {
      StoreNarrowN(hn::Set(one, hn::ReduceSum(d, sums[j][r])), one, out + j, 1);
    }
  }
}

template <size_t kRows, typename T>
void MultiplyFewTransposed(const GatherMmTile& t) {
  constexpr size_t kColumns = kRows <= 2 ? 8 : 4;
  size_t column = t.first_column;
  for (; column + kColumns <= t.last_column; column += kColumns) {
    DotColumns<kRows, kColumns, T>(t, column);
  }
  for (; column < t.last_column; ++column) DotColumns<kRows, 1, T>(t, column);
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
