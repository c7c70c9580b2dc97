// The gated delta rule for several tokens at a time. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATED_DELTA_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATED_DELTA_CHUNK_INL_H_
#undef COREAI_KERNELS_GATED_DELTA_CHUNK_INL_H_
#else
#define COREAI_KERNELS_GATED_DELTA_CHUNK_INL_H_
#endif

#include "kernels/gated_delta/gated_delta_state-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

// Tokens per chunk, and vectors of a row of the state per block. Every element of the state is
// multiplied by a key and a query of each token: 2 * kChunk * kBlockVecs sums in registers, 24 of
// 32 or 12 of 16.
#if HWY_TARGET == HWY_AVX2
inline constexpr size_t kChunk = 3;
#else
inline constexpr size_t kChunk = 6;
#endif
inline constexpr size_t kBlockVecs = 2;
static_assert(kChunk <= kMaxChunk && kSegmentTokens % kChunk == 0, "the plan's sizes");

/// With S the state before the chunk, a[i] its decay until token i, r[i][j] the decay from token j
/// to token i, and d[i] what token i writes, unrolling the recurrence gives
///
///   d[i] = beta[i] (v[i] - a[i] k[i]ᵀS - sum over j < i of r[i][j] (k[i] . k[j]) d[j])
///   o[i] = a[i] q[i]ᵀS + sum over j <= i of r[i][j] (q[i] . k[j]) d[j]
///   S after = a[last] S + sum over j of r[last][j] k[j] d[j]ᵀ
///
/// so that S is read twice and written once per chunk. Decays are products of the tokens' decays,
/// never quotients. The columns of S are independent; a block of them stays in the first-level
/// cache for all tokens. (The unrolled form is that of Yang et al. 2024, "Parallelizing linear
/// transformers with the delta rule over sequence length", without its matrix inverse.)
template <typename T>
class GatedDeltaChunks {
 public:
  using W = Wide<T>;

  GatedDeltaChunks(const GatedDeltaProblem& a, size_t item, void* memory)
      : a_(a), item_(a, item), s_(a, memory) {}

  void Run() {
    for (size_t column = 0; column < item_.columns; column += kBlock) {
      LoadStateBlock<kBlock>(a_, item_, column, Block(column));
    }
    for (size_t token = 0; token < a_.length; token += kSegmentTokens) {
      const size_t tokens = HWY_MIN(kSegmentTokens, a_.length - token);
      for (size_t i = 0; i < tokens; i += kChunk) Prepare(token + i, i / kChunk);
      for (size_t column = 0; column < item_.columns; column += kBlock) {
        for (size_t i = 0; i < tokens; i += kChunk) {
          if (column == 0) PrefetchTokens(token + i + kSegmentTokens);
          Advance(token + i, i / kChunk, column);
        }
      }
    }
    if (item_.state == nullptr) return;
    for (size_t column = 0; column < item_.columns; column += kBlock) {
      StoreStateBlock<kBlock>(a_, item_, column, Block(column));
    }
  }

 private:
  using D = hn::ScalableTag<W>;
  using V = hn::Vec<D>;
  static constexpr size_t kLanes = hn::MaxLanes(D());
  static constexpr size_t kBlock = kBlockVecs * kLanes;
  static_assert(kBlock * sizeof(W) <= kMaxBlockBytes && kPack % kLanes == 0, "the plan's sizes");

  /// Prefetches a chunk of the next segment, whose preparation would otherwise wait for memory.
  void PrefetchTokens(size_t token) const {
    if (token >= a_.length) return;
    const size_t last = HWY_MIN(token + kChunk, a_.length) * a_.key_dim;
    for (size_t i = token * a_.key_dim; i < last; i += 64 / sizeof(T)) {
      __builtin_prefetch(item_.key + i);
      __builtin_prefetch(item_.query + i);
    }
  }

  /// Prefetches the value and the output of a token. A store that waits for its cache line would
  /// stall the following stores to the state.
  HWY_INLINE void PrefetchRows(size_t token, size_t column) const {
    const T* value = item_.value + token * a_.value_dim + column;
    const T* output = item_.output + token * item_.output_stride + column;
    const size_t columns = HWY_MIN(kBlock, item_.columns - column);
    for (size_t i = 0; i < columns; i += 64 / sizeof(T)) {
      __builtin_prefetch(value + i);
      __builtin_prefetch(output + i, 1);
    }
  }

  W* Block(size_t column) const { return s_.state + column * a_.key_dim; }

  /// Number of lanes of vector v of a block that are columns of the item.
  size_t Present(size_t column, size_t v) const {
    return PresentColumns(item_, column + v * kLanes, kLanes);
  }

  /// Packs a chunk's keys and queries and computes the couplings of its tokens. Missing tokens of
  /// the last chunk have zero vectors; they neither write to nor decay the state.
  void Prepare(size_t token, size_t chunk) {
    const size_t count = HWY_MIN(kChunk, a_.length - token);
    W* out = Tokens(chunk);
    if (count < kChunk) hwy::ZeroBytes(out, 2 * kChunk * s_.padded * sizeof(W));
    for (size_t i = 0; i < count; ++i) {
      const size_t at = (token + i) * a_.key_dim;
      WidenToken(item_.key + at, a_.key_dim, a_.normalize, W{1}, kStride, out + i * kPack);
      WidenToken(item_.query + at, a_.key_dim, a_.normalize, item_.scale, kStride,
                 out + (kChunk + i) * kPack);
    }
    Couple(token, count, out, &s_.couplings[chunk]);
  }

  static constexpr size_t kStride = 2 * kChunk * kPack;
  W* Tokens(size_t chunk) const { return s_.tokens + chunk * 2 * kChunk * s_.padded; }

  void Couple(size_t token, size_t count, const W* tokens, ChunkCoefficients<W>* c) {
    W step[kChunk];
    for (size_t i = 0; i < kChunk; ++i) {
      step[i] = i < count ? ExpOf(item_.log_decay[token + i]) : W{1};
      c->beta[i] = i < count ? item_.beta[token + i] : W{0};
      c->decay[i] = i == 0 ? step[0] : c->decay[i - 1] * step[i];
      c->beta_decay[i] = c->beta[i] * c->decay[i];
    }
    CoupleFrom<0>(tokens, step, c);
  }

  /// The couplings of tokens from kKey on with key kKey, and likewise for the following keys.
  template <size_t kKey>
  HWY_INLINE void CoupleFrom(const W* tokens, const W (&step)[kChunk],
                             ChunkCoefficients<W>* c) const {
    if constexpr (kKey < kChunk) {
      W dots[2 * kChunk];
      MultiplyByKey<kKey>(tokens, dots);
      W decay = 1;
      for (size_t i = kKey; i < kChunk; ++i) {
        if (i > kKey) {
          decay *= step[i];
          c->key[i * kChunk + kKey] = c->beta[i] * decay * dots[i];
        }
        c->query[i * kChunk + kKey] = decay * dots[kChunk + i];
      }
      c->left[kKey] = decay;
      CoupleFrom<kKey + 1>(tokens, step, c);
    }
  }

  /// dots[i] = the chunk's vector i . key[kKey], for the following keys and the queries from kKey
  /// on.
  template <size_t kKey>
  HWY_INLINE void MultiplyByKey(const W* HWY_RESTRICT tokens, W (&dots)[2 * kChunk]) const {
    const D d;
    const auto wanted = [](size_t i)
                            HWY_ATTR { return i >= kChunk ? i - kChunk >= kKey : i > kKey; };
    V sums[2 * kChunk];
#pragma GCC unroll 12
    for (size_t i = 0; i < 2 * kChunk; ++i) sums[i] = hn::Zero(d);
    for (size_t at = 0; at < 2 * kChunk * s_.padded; at += kStride) {
#pragma GCC unroll 4
      for (size_t lane = 0; lane < kPack; lane += kLanes) {
        const W* p = tokens + at + lane;
        const V k = hn::Load(d, p + kKey * kPack);
#pragma GCC unroll 12
        for (size_t i = 0; i < 2 * kChunk; ++i) {
          if (wanted(i)) sums[i] = hn::MulAdd(hn::Load(d, p + i * kPack), k, sums[i]);
        }
      }
    }
#pragma GCC unroll 12
    for (size_t i = 0; i < 2 * kChunk; ++i) {
      if (wanted(i)) dots[i] = hn::ReduceSum(d, sums[i]);
    }
  }

  /// Processes a chunk for a block of columns.
  HWY_INLINE void Advance(size_t token, size_t chunk, size_t column) {
    const size_t count = HWY_MIN(kChunk, a_.length - token);
    for (size_t i = 0; i < count; ++i) PrefetchRows(token + i, column);
    V sums[2 * kChunk][kBlockVecs];
    MultiplyState(Tokens(chunk), Block(column), sums);
    V write[kChunk][kBlockVecs];
    if (token + kChunk <= a_.length && column + kBlock <= item_.columns) {
      Solve<true>(token, s_.couplings[chunk], column, sums, write);
    } else {
      Solve<false>(token, s_.couplings[chunk], column, sums, write);
    }
    UpdateState(Tokens(chunk), s_.couplings[chunk].decay[kChunk - 1], write, Block(column));
  }

  /// sums[i] = the chunk's vector i (keys, then queries) times the state.
  HWY_INLINE void MultiplyState(const W* HWY_RESTRICT tokens, const W* HWY_RESTRICT state,
                                V (&sums)[2 * kChunk][kBlockVecs]) const {
    const D d;
#pragma GCC unroll 12
    for (size_t i = 0; i < 2 * kChunk; ++i) {
#pragma GCC unroll 2
      for (size_t v = 0; v < kBlockVecs; ++v) sums[i][v] = hn::Zero(d);
    }
    for (size_t left = a_.key_dim; left > 0;) {
      const size_t rows = HWY_MIN(kPack, left);
#pragma GCC unroll 4
      for (size_t row = 0; row < rows; ++row) {
        V s[kBlockVecs];
#pragma GCC unroll 2
        for (size_t v = 0; v < kBlockVecs; ++v) s[v] = hn::Load(d, state + v * kLanes);
#pragma GCC unroll 12
        for (size_t i = 0; i < 2 * kChunk; ++i) {
          const V x = hn::Set(d, tokens[i * kPack + row]);
#pragma GCC unroll 2
          for (size_t v = 0; v < kBlockVecs; ++v) sums[i][v] = hn::MulAdd(x, s[v], sums[i][v]);
        }
        state += kBlock;
      }
      tokens += 2 * kChunk * kPack;
      left -= rows;
    }
  }

  /// Stores the outputs, and stores in `write` each token's addend to the state at the end of the
  /// chunk. `kWhole`: no token and no column is missing.
  template <bool kWhole>
  HWY_INLINE void Solve(size_t token, const ChunkCoefficients<W>& c, size_t column,
                        V (&sums)[2 * kChunk][kBlockVecs], V (&write)[kChunk][kBlockVecs]) const {
    const D d;
    const size_t count = HWY_MIN(kChunk, a_.length - token);
#pragma GCC unroll 2
    for (size_t v = 0; v < kBlockVecs; ++v) {
      const size_t n = Present(column, v);
      const size_t at = column + v * kLanes;
#pragma GCC unroll 6
      for (size_t i = 0; i < kChunk; ++i) {
        V value = hn::Zero(d);
        if constexpr (kWhole) {
          value = LoadWide(d, item_.value + (token + i) * a_.value_dim + at);
        } else if (i < count && n != 0) {
          value = LoadWideN(d, item_.value + (token + i) * a_.value_dim + at, n);
        }
        V w = hn::Mul(hn::Set(d, c.beta[i]), value);
        w = hn::NegMulAdd(hn::Set(d, c.beta_decay[i]), sums[i][v], w);
#pragma GCC unroll 6
        for (size_t j = 0; j < i; ++j) {
          w = hn::NegMulAdd(hn::Set(d, c.key[i * kChunk + j]), write[j][v], w);
        }
        write[i][v] = w;
        V out = hn::Mul(hn::Set(d, c.decay[i]), sums[kChunk + i][v]);
#pragma GCC unroll 6
        for (size_t j = 0; j <= i; ++j) {
          out = hn::MulAdd(hn::Set(d, c.query[i * kChunk + j]), write[j][v], out);
        }
        if constexpr (kWhole) {
          StoreNarrow(out, d, item_.output + (token + i) * item_.output_stride + at);
        } else if (i < count && n != 0) {
          StoreNarrowN(out, d, item_.output + (token + i) * item_.output_stride + at, n);
        }
      }
#pragma GCC unroll 6
      for (size_t i = 0; i < kChunk; ++i) {
        write[i][v] = hn::Mul(write[i][v], hn::Set(d, c.left[i]));
      }
    }
  }

  HWY_INLINE void UpdateState(const W* HWY_RESTRICT tokens, W decay_of_state,
                              const V (&write)[kChunk][kBlockVecs], W* HWY_RESTRICT state) const {
    const D d;
    const V decay = hn::Set(d, decay_of_state);
    for (size_t left = a_.key_dim; left > 0;) {
      const size_t rows = HWY_MIN(kPack, left);
#pragma GCC unroll 4
      for (size_t row = 0; row < rows; ++row) {
        V s[kBlockVecs];
#pragma GCC unroll 2
        for (size_t v = 0; v < kBlockVecs; ++v) {
          s[v] = hn::Mul(decay, hn::Load(d, state + v * kLanes));
        }
#pragma GCC unroll 6
        for (size_t i = 0; i < kChunk; ++i) {
          const V k = hn::Set(d, tokens[i * kPack + row]);
#pragma GCC unroll 2
          for (size_t v = 0; v < kBlockVecs; ++v) s[v] = hn::MulAdd(k, write[i][v], s[v]);
        }
#pragma GCC unroll 2
        for (size_t v = 0; v < kBlockVecs; ++v) hn::Store(s[v], d, state + v * kLanes);
        state += kBlock;
      }
      tokens += 2 * kChunk * kPack;
      left -= rows;
    }
  }

  const GatedDeltaProblem& a_;
  const GatedDeltaItem<T> item_;
  const GatedDeltaScratch<W> s_;
};

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
