// Token after token of the gated delta rule, as in decoding: the state is updated in place.
// Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATED_DELTA_STEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATED_DELTA_STEP_INL_H_
#undef COREAI_KERNELS_GATED_DELTA_STEP_INL_H_
#else
#define COREAI_KERNELS_GATED_DELTA_STEP_INL_H_
#endif

#include "kernels/gated_delta/gated_delta_item-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

// Vectors of a row of the state per block: two sums per vector, and whole rows of 128 floats.
#if HWY_TARGET == HWY_AVX2
inline constexpr size_t kStepVecs = 4;
#else
inline constexpr size_t kStepVecs = 8;
#endif

/// `S` is the type of the state in memory.
template <typename T, typename S>
class GatedDeltaStep {
 public:
  using W = Wide<T>;

  GatedDeltaStep(const GatedDeltaProblem& a, size_t item, void* memory)
      : a_(a), item_(a, item), s_(a, memory) {}

  void Run() {
    key_ = s_.rows;
    query_ = s_.rows + s_.padded;
    if (a_.length == 0 && item_.state != nullptr) KeepState();
    for (size_t token = 0; token < a_.length; ++token) Step(token);
  }

 private:
  static constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<W>());
  using D = hn::ScalableTag<W>;
  using V = hn::Vec<D>;

  void Step(size_t token) {
    const size_t at = token * a_.key_dim;
    WidenToken(item_.key + at, a_.key_dim, a_.normalize, W{1}, kPack, key_);
    WidenToken(item_.query + at, a_.key_dim, a_.normalize, item_.scale, kPack, query_);
    decay_ = ExpOf(item_.log_decay[token]);
    beta_ = item_.beta[token];
    both_ = DotPadded(query_, key_, s_.padded);
    before_ = static_cast<const S*>(token == 0 ? item_.initial_state : item_.state);
    value_ = item_.value + token * a_.value_dim;
    output_ = item_.output + token * item_.output_stride;
    size_t column = 0;
    for (; column + kStepVecs * kLanes <= item_.columns; column += kStepVecs * kLanes) {
      Columns<kStepVecs, false>(column, 0);
    }
    for (; column + kLanes <= item_.columns; column += kLanes) Columns<1, false>(column, 0);
    if (column < item_.columns) Columns<1, true>(column, item_.columns - column);
  }

  /// Without tokens, the state is the initial one, or zeros.
  void KeepState() const {
    const auto* before = static_cast<const S*>(item_.initial_state);
    auto* after = static_cast<S*>(item_.state);
    for (size_t row = 0; row < a_.key_dim; ++row) {
      S* const to = after + row * a_.value_dim;
      if (before == nullptr) {
        hwy::ZeroBytes(to, item_.columns * sizeof(S));
      } else if (before != after) {
        hwy::CopyBytes(before + row * a_.value_dim, to, item_.columns * sizeof(S));
      }
    }
  }

  template <bool kTail, typename E>
  static HWY_INLINE V LoadColumns(const E* p, size_t n) {
    if constexpr (kTail) return LoadWideN(D(), p, n);
    return LoadWide(D(), p);
  }
  template <bool kTail, typename E>
  static HWY_INLINE void StoreColumns(V v, E* p, size_t n) {
    if constexpr (kTail) {
      StoreNarrowN(v, D(), p, n);
    } else {
      StoreNarrow(v, D(), p);
    }
  }

  template <size_t kVecs, bool kTail>
  HWY_INLINE void Columns(size_t column, size_t n) {
    const D d;
    const S* before = before_;
    V known[kVecs], seen[kVecs];
#pragma GCC unroll 8
    for (size_t v = 0; v < kVecs; ++v) known[v] = seen[v] = hn::Zero(d);
    if (before != nullptr) {
      before += column;
      for (size_t row = 0; row < a_.key_dim; ++row) {
        const V k = hn::Set(d, key_[row]);
        const V q = hn::Set(d, query_[row]);
#pragma GCC unroll 8
        for (size_t v = 0; v < kVecs; ++v) {
          const V s = LoadColumns<kTail>(before + row * a_.value_dim + v * kLanes, n);
          known[v] = hn::MulAdd(k, s, known[v]);
          seen[v] = hn::MulAdd(q, s, seen[v]);
        }
      }
    }
    const V decay = hn::Set(d, decay_);
    const V beta = hn::Set(d, beta_);
    V write[kVecs];
#pragma GCC unroll 8
    for (size_t v = 0; v < kVecs; ++v) {
      const V value = LoadColumns<kTail>(value_ + column + v * kLanes, n);
      write[v] = hn::Mul(beta, hn::NegMulAdd(decay, known[v], value));
      const V out = hn::MulAdd(hn::Set(d, both_), write[v], hn::Mul(decay, seen[v]));
      StoreColumns<kTail>(out, output_ + column + v * kLanes, n);
    }
    if (item_.state == nullptr) return;
    auto* after = static_cast<S*>(item_.state) + column;
    for (size_t row = 0; row < a_.key_dim; ++row) {
      const V k = hn::Set(d, key_[row]);
#pragma GCC unroll 8
      for (size_t v = 0; v < kVecs; ++v) {
        const size_t at = row * a_.value_dim + v * kLanes;
        V s = hn::Zero(d);
        if (before != nullptr) s = hn::Mul(decay, LoadColumns<kTail>(before + at, n));
        StoreColumns<kTail>(hn::MulAdd(k, write[v], s), after + at, n);
      }
    }
  }

  const GatedDeltaProblem& a_;
  const GatedDeltaItem<T> item_;
  const GatedDeltaScratch<W> s_;
  W* key_ = nullptr;
  W* query_ = nullptr;
  const S* before_ = nullptr;
  const T* value_ = nullptr;
  T* output_ = nullptr;
  W decay_ = 0;
  W beta_ = 0;
  W both_ = 0;  // query . key
};

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
