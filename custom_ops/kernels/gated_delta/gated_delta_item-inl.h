// The part of the gated delta rule that an item computes, and its inputs in the wide type. Included
// once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATED_DELTA_ITEM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATED_DELTA_ITEM_INL_H_
#undef COREAI_KERNELS_GATED_DELTA_ITEM_INL_H_
#else
#define COREAI_KERNELS_GATED_DELTA_ITEM_INL_H_
#endif

#include "kernels/gated_delta/gated_delta_plan.h"
#include "simd/lanes-inl.h"
#include "simd/reduce-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Pointers to the rows of one value head, and the item's columns of its state.
template <typename T>
struct GatedDeltaItem {
  using W = Wide<T>;
  const T* query;
  const T* key;
  const T* value;  // the item's first column of the first token
  const W* log_decay;
  const W* beta;
  T* output;             // the item's first column of the first token
  size_t output_stride;  // from token to token
  const void* initial_state;
  void* state;
  size_t first_column;
  size_t columns;
  W scale;

  GatedDeltaItem(const GatedDeltaProblem& a, size_t item) {
    const size_t parts = (a.value_dim + kItemColumns - 1) / kItemColumns;
    const size_t head = item / parts;  // of all batches
    const size_t batch = head / a.value_heads;
    const size_t value_head = head % a.value_heads;
    const size_t key_head = batch * a.heads + value_head / (a.value_heads / a.heads);
    first_column = item % parts * kItemColumns;
    columns = HWY_MIN(kItemColumns, a.value_dim - first_column);
    query = static_cast<const T*>(a.query) + key_head * a.length * a.key_dim;
    key = static_cast<const T*>(a.key) + key_head * a.length * a.key_dim;
    value = static_cast<const T*>(a.value) + head * a.length * a.value_dim + first_column;
    log_decay = static_cast<const W*>(a.log_decay) + head * a.length;
    beta = static_cast<const W*>(a.beta) + head * a.length;
    output_stride = a.value_heads * a.value_dim;
    output = static_cast<T*>(a.output) + batch * a.length * output_stride +
             value_head * a.value_dim + first_column;
    const size_t at = head * a.key_dim * a.value_dim + first_column;
    const size_t size = a.wide_state ? sizeof(W) : sizeof(T);
    initial_state = a.initial_state == nullptr
                        ? nullptr
                        : static_cast<const char*>(a.initial_state) + at * size;
    state = a.state == nullptr ? nullptr : static_cast<char*>(a.state) + at * size;
    scale = InverseSqrt(static_cast<W>(a.key_dim));
  }
};

inline float ExpOf(float x) { return __builtin_expf(x); }
inline double ExpOf(double x) { return __builtin_exp(x); }

/// Writes a query or key in the wide type, times `scale`, optionally normalized, padded with zeros
/// to a multiple of kPack. Groups of kPack elements are `stride` apart.
template <typename T, typename W>
void WidenToken(const T* HWY_RESTRICT in, size_t n, bool normalize, W scale, size_t stride,
                W* HWY_RESTRICT out) {
  const hn::ScalableTag<W> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  if (normalize) scale *= InverseSqrt(SumOver(Square(), d, in, n) + static_cast<W>(1e-6));
  const auto factor = hn::Set(d, scale);
  for (; n >= kPack; n -= kPack) {
    for (size_t lane = 0; lane < kPack; lane += kLanes) {
      hn::Store(hn::Mul(LoadWide(d, in + lane), factor), d, out + lane);
    }
    in += kPack;
    out += stride;
  }
  for (size_t lane = 0; n != 0 && lane < kPack; lane += kLanes) {
    const size_t here = lane < n ? HWY_MIN(kLanes, n - lane) : 0;
    const auto x = here == 0 ? hn::Zero(d) : LoadWideN(d, in + lane, here);
    hn::Store(hn::Mul(x, factor), d, out + lane);
  }
}

/// Sum of x[i] * y[i] over n elements; n is a multiple of kPack.
template <typename W>
HWY_INLINE W DotPadded(const W* HWY_RESTRICT x, const W* HWY_RESTRICT y, size_t n) {
  const hn::ScalableTag<W> d;
  constexpr size_t kLanes = hn::MaxLanes(d), kVecs = kSumLanes<W> / kLanes;
  hn::Vec<decltype(d)> sums[kVecs];
#pragma GCC unroll 16
  for (auto& sum : sums) sum = hn::Zero(d);
  for (size_t i = 0; i < n; i += kSumLanes<W>) {
#pragma GCC unroll 16
    for (size_t v = 0; v < kVecs; ++v) {
      const size_t at = i + v * kLanes;
      sums[v] = hn::MulAdd(hn::Load(d, x + at), hn::Load(d, y + at), sums[v]);
    }
  }
  return SumOfHalves(d, sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
