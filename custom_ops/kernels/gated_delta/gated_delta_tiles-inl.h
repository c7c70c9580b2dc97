// The gated delta rule by products of tile registers. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATED_DELTA_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATED_DELTA_TILES_INL_H_
#undef COREAI_KERNELS_GATED_DELTA_TILES_INL_H_
#else
#define COREAI_KERNELS_GATED_DELTA_TILES_INL_H_
#endif

#include "kernels/gated_delta/gated_delta_state-inl.h"
#include "kernels/gated_delta/gated_delta_tokens-inl.h"
#include "simd/parts-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// The algebra of GatedDeltaChunks (gated_delta_chunk-inl.h) for tokens of bfloat16 or float16 and
/// for chunks of as many tokens as a product of tiles is deep. The state and its addends are split
/// into three parts of bfloat16, which represent every bit, and float16 into two. Products of parts
/// are added in float32. Only those of the lowest parts, below 2^-24 of the whole, are omitted, so
/// that the result is as accurate as with products of float32 (Henry, Tang and Heinecke 2019,
/// "Leveraging the bfloat16 artificial intelligence datatype for higher-precision computations").
/// Keys and queries are multiplied as they are given; their norms are factors of the coefficients.
/// The couplings within a chunk are solved in float32, token by token, so that NaN never reaches an
/// earlier token.
template <typename T, class Tiles>
class GatedDeltaTiles {
 public:
  GatedDeltaTiles(const GatedDeltaProblem& a, size_t item, void* memory)
      : a_(a),
        item_(a, item),
        s_(a, kKeyParts, memory),
        steps_(s_.padded / kAmxPairDepth),
        half_(steps_ * kAmxWords),
        tokens_(a_, item_, s_, products_) {}

  void Run() {
    for (size_t column = 0; column < item_.columns; column += kTileColumns) {
      LoadStateBlock<kTileColumns>(a_, item_, column, Block(column));
      const size_t missing = (s_.padded - a_.key_dim) * kTileColumns;
      hwy::ZeroBytes(Block(column) + a_.key_dim * kTileColumns, missing * sizeof(float));
    }
    for (size_t token = 0; token < a_.length; token += kSegmentTokens) {
      const size_t tokens = HWY_MIN(kSegmentTokens, a_.length - token);
      for (size_t i = 0; i < tokens; i += kTileTokens) {
        tokens_.Prepare(token + i, ChunkAt(i / kTileTokens));
      }
      for (size_t column = 0; column < item_.columns; column += kTileBlocks * kTileColumns) {
        for (size_t i = 0; i < tokens; i += kTileTokens) {
          if (column == 0) tokens_.Prefetch(token + i + kSegmentTokens);
          Advance(token + i, ChunkAt(i / kTileTokens), column);
        }
      }
    }
    if (item_.state == nullptr) return;
    for (size_t column = 0; column < item_.columns; column += kTileColumns) {
      StoreStateBlock<kTileColumns>(a_, item_, column, Block(column));
    }
  }

 private:
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;
  static constexpr size_t kLanes = hn::MaxLanes(D());
  using Tokens = GatedDeltaTokens<T, Tiles>;
  static constexpr size_t kKeyParts = Tokens::kKeyParts;
  static constexpr size_t kHalf = kAmxRows;  // tokens whose addends are in registers
  static constexpr size_t kBlockSums = kTileTokens * kTileColumns;
  static_assert(kTileTokens == 2 * kAmxRows && kTileTokens == kAmxPairDepth, "whole tiles");
  static_assert(kTileColumns == kAmxColumns, "a tile");

  TileChunk ChunkAt(size_t i) const {
    const size_t size = i * kKeyParts * half_;
    return {s_.tokens + 4 * size, s_.columns + 2 * size, s_.couplings + i};
  }

  float* Block(size_t column) const { return s_.state + column * s_.padded; }
  size_t Count(size_t token) const { return HWY_MIN(kTileTokens, a_.length - token); }

  /// Processes a chunk for up to kTileBlocks blocks of columns.
  void Advance(size_t token, const TileChunk& chunk, size_t column) {
    PrefetchRows(token + kTileTokens, column);
    const size_t columns = PresentColumns(item_, column, kTileBlocks * kTileColumns);
    const size_t blocks = (columns + kTileColumns - 1) / kTileColumns;
    for (size_t i = 0; i < blocks; ++i) {
      MultiplyState(chunk, Block(column + i * kTileColumns), s_.sums + i * 2 * kBlockSums);
    }
    for (size_t i = 0; i < blocks; ++i) {
      Couplings(token, *chunk.couplings, column, i);
      SplitAddends(chunk.couplings->write, s_.addends + i * kBlockSums, WritesOf(i));
    }
    StoreOutputs(token, column, columns);
    for (size_t i = 0; i < blocks; ++i) {
      UpdateState(chunk, WritesOf(i), Block(column + i * kTileColumns));
    }
  }

  std::uint32_t* WritesOf(size_t block) const {
    return s_.writes + block * kFloatParts * kAmxWords;
  }

  /// Prefetches values and outputs of the next chunk.
  void PrefetchRows(size_t token, size_t column) const {
    if (token >= a_.length) return;
    for (size_t i = token; i < token + Count(token); ++i) {
      __builtin_prefetch(item_.value + i * a_.value_dim + column, 0, 2);
      __builtin_prefetch(item_.output + i * item_.output_stride + column, 1, 2);
    }
  }

  /// Computes the addends and the outputs of a block from the sums.
  void Couplings(size_t token, const TileCoefficients& c, size_t column, size_t block) const {
    const float* known = s_.sums + block * 2 * kBlockSums;
    float* addends = s_.addends + block * kBlockSums;
    T* outputs = static_cast<T*>(s_.outputs) + block * kTileColumns;
    for (size_t lane = 0; lane < kTileColumns; lane += kLanes) {
      const size_t at = column + block * kTileColumns + lane;
      Solve<0>(token, c, at, known + lane, addends + lane);
      Solve<1>(token, c, at, known + lane, addends + lane);
      Read<0>(c, known + kBlockSums + lane, addends + lane, outputs + lane);
      Read<1>(c, known + kBlockSums + lane, addends + lane, outputs + lane);
    }
  }

  /// sums = keys and queries times a block of the state. A step is split while the products of the
  /// step before are computed.
  void MultiplyState(const TileChunk& chunk, float* HWY_RESTRICT block, float* HWY_RESTRICT sums) {
    const float decay = chunk.couplings->decay;
    products_.Zero();
    SplitState(decay, block, s_.parts);
    for (size_t step = 0; step < steps_; ++step) {
      block += kAmxPairDepth * kTileColumns;
      const size_t buffer = kFloatParts * kAmxWords;
      if (step + 1 < steps_) SplitState(decay, block, s_.parts + (step + 1) % 2 * buffer);
      products_.template Add<4, kFloatParts>(chunk.tokens + step * kAmxWords, half_, 4 * half_,
                                             s_.parts + step % 2 * buffer, kAmxWords);
    }
    products_.template Store<4>(sums);
  }

  /// Splits rows of a block of the state, and multiplies them by their decay during the chunk.
  static HWY_INLINE void SplitState(float factor, float* HWY_RESTRICT block,
                                    std::uint32_t* HWY_RESTRICT out) {
    const D d;
    const V decay = hn::Set(d, factor);
    for (size_t pair = 0; pair < kAmxRows; ++pair, block += 2 * kTileColumns, out += kAmxColumns) {
      for (size_t lane = 0; lane < kTileColumns; lane += kLanes) {
        const V even = hn::Load(d, block + lane);
        const V odd = hn::Load(d, block + kTileColumns + lane);
        StoreSplit(even, odd, out + lane);
        hn::Store(hn::Mul(even, decay), d, block + lane);
        hn::Store(hn::Mul(odd, decay), d, block + kTileColumns + lane);
      }
    }
  }

  static HWY_INLINE void StoreSplit(V even, V odd, std::uint32_t* HWY_RESTRICT out) {
    V parts[kFloatParts];
    SplitPairs(D(), even, odd, parts);
#pragma GCC unroll 3
    for (size_t i = 0; i < kFloatParts; ++i) {
      hn::Store(parts[i], D(), reinterpret_cast<float*>(out + i * kAmxWords));
    }
  }

  /// sums[i] += sign * coefficients[i][j] * addends[j] for the half's tokens i and all tokens j of
  /// the half before.
  template <bool kSubtract>
  static HWY_INLINE void AddEarlier(const float* HWY_RESTRICT coefficients,
                                    const float* HWY_RESTRICT addends, V (&sums)[kHalf]) {
    const D d;
    for (size_t j = 0; j < kHalf; ++j) {
      const V x = hn::Load(d, addends + j * kTileColumns);
#pragma GCC unroll 16
      for (size_t i = 0; i < kHalf; ++i) {
        const V factor = hn::Set(d, coefficients[i * kTileTokens + j]);
        sums[i] = kSubtract ? hn::NegMulAdd(factor, x, sums[i]) : hn::MulAdd(factor, x, sums[i]);
      }
    }
  }

  /// Stores what each token of a half writes, in one vector of columns.
  template <size_t kWhich>
  HWY_INLINE void Solve(size_t token, const TileCoefficients& c, size_t column,
                        const float* HWY_RESTRICT known, float* HWY_RESTRICT addends) const {
    const D d;
    constexpr size_t kFirst = kWhich * kHalf;
    const size_t n = PresentColumns(item_, column, kLanes);
    const size_t count = Count(token);
    V write[kHalf];
#pragma GCC unroll 16
    for (size_t i = 0; i < kHalf; ++i) {
      const size_t at = kFirst + i;
      V value = hn::Zero(d);
      if (at < count) value = LoadValue(item_.value + (token + at) * a_.value_dim + column, n);
      const V x = hn::Load(d, known + at * kTileColumns);
      write[i] = hn::NegMulAdd(hn::Set(d, c.known[at]), x, hn::Mul(hn::Set(d, c.beta[at]), value));
    }
    const float* coefficients = c.Keys() + kFirst * kTileTokens;
    if constexpr (kWhich == 1) AddEarlier<true>(coefficients, addends, write);
    coefficients += kFirst;
#pragma GCC unroll 16
    for (size_t j = 0; j < kHalf; ++j) {
#pragma GCC unroll 16
      for (size_t i = j + 1; i < kHalf; ++i) {
        const V factor = hn::Set(d, coefficients[i * kTileTokens + j]);
        write[i] = hn::NegMulAdd(factor, write[j], write[i]);
      }
      hn::Store(write[j], d, addends + (kFirst + j) * kTileColumns);
    }
  }

  static HWY_INLINE V LoadValue(const T* HWY_RESTRICT p, size_t n) {
    if (HWY_LIKELY(n == kLanes)) return LoadWide(D(), p);
    return n == 0 ? hn::Zero(D()) : LoadWideN(D(), p, n);
  }

  /// Keeps the outputs of a half, in one vector of columns.
  template <size_t kWhich>
  static HWY_INLINE void Read(const TileCoefficients& c, const float* HWY_RESTRICT seen,
                              const float* HWY_RESTRICT addends, T* HWY_RESTRICT outputs) {
    const D d;
    constexpr size_t kFirst = kWhich * kHalf;
    V out[kHalf];
#pragma GCC unroll 16
    for (size_t i = 0; i < kHalf; ++i) {
      const size_t at = kFirst + i;
      out[i] = hn::Mul(hn::Set(d, c.seen[at]), hn::Load(d, seen + at * kTileColumns));
    }
    const float* coefficients = c.Queries() + kFirst * kTileTokens;
    if constexpr (kWhich == 1) AddEarlier<false>(coefficients, addends, out);
    coefficients += kFirst;
#pragma GCC unroll 16
    for (size_t j = 0; j < kHalf; ++j) {
      const V x = hn::Load(d, addends + (kFirst + j) * kTileColumns);
#pragma GCC unroll 16
      for (size_t i = j; i < kHalf; ++i) {
        out[i] = hn::MulAdd(hn::Set(d, coefficients[i * kTileTokens + j]), x, out[i]);
      }
    }
#pragma GCC unroll 16
    for (size_t i = 0; i < kHalf; ++i) {
      StoreNarrow(out[i], d, outputs + (kFirst + i) * kTileBlocks * kTileColumns);
    }
  }

  /// Outputs are stored row by row. Their addresses are often a power of two apart, so that those
  /// of the chunk would share one set of the first-level cache.
  void StoreOutputs(size_t token, size_t column, size_t columns) const {
    constexpr size_t kColumns = kTileBlocks * kTileColumns;
    const T* from = static_cast<const T*>(s_.outputs);
    T* to = item_.output + token * item_.output_stride + column;
    for (size_t left = Count(token); left > 0; --left) {
      if (HWY_LIKELY(columns == kColumns)) {
        hwy::CopyBytes<kColumns * sizeof(T)>(from, to);
      } else {
        hwy::CopyBytes(from, to, columns * sizeof(T));
      }
      from += kColumns;
      to += item_.output_stride;
    }
  }

  /// Splits what the tokens write, times its decay until the end of the chunk, in the pairs of
  /// tokens of TransposeKeys.
  static void SplitAddends(const float* HWY_RESTRICT scale, const float* HWY_RESTRICT addends,
                           std::uint32_t* HWY_RESTRICT out) {
    const D d;
    for (size_t i = 0; i < kHalf; ++i) {
      const float* first = addends + i * kTileColumns;
      for (size_t lane = 0; lane < kTileColumns; lane += kLanes) {
        const V even = hn::Mul(hn::Set(d, scale[i]), hn::Load(d, first + lane));
        const V odd =
            hn::Mul(hn::Set(d, scale[kHalf + i]), hn::Load(d, first + kHalf * kTileColumns + lane));
        StoreSplit(even, odd, out + i * kAmxColumns + lane);
      }
    }
  }

  /// Adds keys times addends to a block of the state.
  void UpdateState(const TileChunk& chunk, const std::uint32_t* HWY_RESTRICT writes,
                   float* HWY_RESTRICT block) {
    const std::uint32_t* left = chunk.columns;
    size_t tiles = 2 * steps_;
    for (; tiles >= 4; tiles -= 4, left += 4 * kAmxWords, block += 4 * kAmxWords) {
      AddWrites<4>(left, writes, block);
    }
    if (tiles != 0) AddWrites<2>(left, writes, block);
  }
  template <size_t kLefts>
  HWY_INLINE void AddWrites(const std::uint32_t* HWY_RESTRICT left,
                            const std::uint32_t* HWY_RESTRICT writes, float* HWY_RESTRICT rows) {
    products_.template Load<kLefts>(rows);
    products_.template Add<kLefts, kFloatParts>(left, kAmxWords, 2 * half_, writes, kAmxWords);
    products_.template Store<kLefts>(rows);
  }

  const GatedDeltaProblem& a_;
  const GatedDeltaItem<T> item_;
  const GatedDeltaTileScratch s_;
  const size_t steps_;  // tiles of depth of a key
  const size_t half_;   // words of a part of 16 keys
  typename Tokens::Products products_;
  Tokens tokens_;
};

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
