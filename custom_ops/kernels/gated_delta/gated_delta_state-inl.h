// The state of the gated delta rule in blocks of columns. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATED_DELTA_STATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATED_DELTA_STATE_INL_H_
#undef COREAI_KERNELS_GATED_DELTA_STATE_INL_H_
#else
#define COREAI_KERNELS_GATED_DELTA_STATE_INL_H_
#endif

#include "kernels/gated_delta/gated_delta_item-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Number of the `lanes` columns from `column` on that the item has.
template <typename T>
HWY_INLINE size_t PresentColumns(const GatedDeltaItem<T>& item, size_t column, size_t lanes) {
  return column >= item.columns ? 0 : HWY_MIN(lanes, item.columns - column);
}

/// Reads a block of kBlock columns of the initial state as [key_dim, kBlock]. Missing columns, or a
/// missing state, are zeros.
template <size_t kBlock, typename S, typename T>
void LoadStateBlockAs(const GatedDeltaProblem& a, const GatedDeltaItem<T>& item, size_t column,
                      Wide<T>* HWY_RESTRICT out) {
  const hn::ScalableTag<Wide<T>> d;
  const auto* in = static_cast<const S*>(item.initial_state) + column;
  for (size_t row = 0; row < a.key_dim; ++row) {
    for (size_t lane = 0; lane < kBlock; lane += hn::Lanes(d)) {
      const size_t n = PresentColumns(item, column + lane, hn::Lanes(d));
      const S* p = in + row * a.value_dim + lane;
      hn::Store(n == 0 ? hn::Zero(d) : LoadWideN(d, p, n), d, out + row * kBlock + lane);
    }
  }
}

template <size_t kBlock, typename T>
void LoadStateBlock(const GatedDeltaProblem& a, const GatedDeltaItem<T>& item, size_t column,
                    Wide<T>* HWY_RESTRICT out) {
  if (item.initial_state == nullptr) {
    hwy::ZeroBytes(out, a.key_dim * kBlock * sizeof(Wide<T>));
  } else if (a.wide_state) {
    LoadStateBlockAs<kBlock, Wide<T>>(a, item, column, out);
  } else {
    LoadStateBlockAs<kBlock, T>(a, item, column, out);
  }
}

/// Writes a block to the last state.
template <size_t kBlock, typename S, typename T>
void StoreStateBlockAs(const GatedDeltaProblem& a, const GatedDeltaItem<T>& item, size_t column,
                       const Wide<T>* HWY_RESTRICT block) {
  const hn::ScalableTag<Wide<T>> d;
  auto* out = static_cast<S*>(item.state) + column;
  for (size_t row = 0; row < a.key_dim; ++row) {
    for (size_t lane = 0; lane < kBlock; lane += hn::Lanes(d)) {
      const size_t n = PresentColumns(item, column + lane, hn::Lanes(d));
      if (n == 0) break;
      StoreNarrowN(hn::Load(d, block + row * kBlock + lane), d, out + row * a.value_dim + lane, n);
    }
  }
}

template <size_t kBlock, typename T>
void StoreStateBlock(const GatedDeltaProblem& a, const GatedDeltaItem<T>& item, size_t column,
                     const Wide<T>* HWY_RESTRICT block) {
  if (a.wide_state) {
    StoreStateBlockAs<kBlock, Wide<T>>(a, item, column, block);
  } else {
    StoreStateBlockAs<kBlock, T>(a, item, column, block);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
