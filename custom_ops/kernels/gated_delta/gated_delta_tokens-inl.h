// Chunks of tokens of the gated delta rule as tiles. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATED_DELTA_TOKENS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATED_DELTA_TOKENS_INL_H_
#undef COREAI_KERNELS_GATED_DELTA_TOKENS_INL_H_
#else
#define COREAI_KERNELS_GATED_DELTA_TOKENS_INL_H_
#endif

#include "kernels/gated_delta/gated_delta_item-inl.h"
#include "kernels/gated_delta/gated_delta_products-inl.h"
#include "simd/amx_split-inl.h"
#include "simd/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// A chunk's part of the scratch memory.
struct TileChunk {
  std::uint32_t* tokens;
  std::uint32_t* columns;
  TileCoefficients* couplings;
};

/// Prepares chunks of tokens of bfloat16 or float16 for products with the state.
template <typename T, class Tiles>
class GatedDeltaTokens {
  static constexpr bool kPairs = hwy::IsSame<T, hwy::bfloat16_t>();

 public:
  static constexpr size_t kKeyParts = PartsOf(kPairs ? DType::kBFloat16 : DType::kFloat16);
  using Products = PartProducts<kKeyParts, Tiles>;

  GatedDeltaTokens(const GatedDeltaProblem& a, const GatedDeltaItem<T>& item,
                   const GatedDeltaTileScratch& s, Products& products)
      : a_(a),
        item_(item),
        s_(s),
        products_(products),
        steps_(s.padded / kAmxPairDepth),
        half_(steps_ * kAmxWords) {}

  /// Prefetches a chunk of the next segment, whose preparation would otherwise wait for memory.
  void Prefetch(size_t token) const {
    if (token >= a_.length) return;
    const size_t first = token * a_.key_dim;
    const size_t last = first + Count(token) * a_.key_dim;
    for (size_t i = first; i < last; i += 64 / sizeof(T)) {
      __builtin_prefetch(item_.key + i, 0, 2);
      __builtin_prefetch(item_.query + i, 0, 2);
    }
  }

  /// Packs a chunk's keys and queries and computes the couplings of its tokens. Missing tokens of
  /// the last chunk have zero vectors; they neither write to nor decay the state.
  void Prepare(size_t token, const TileChunk& chunk) {
    const size_t at = token * a_.key_dim;
    PackTokens(item_.key + at, Count(token), chunk.tokens);
    PackTokens(item_.query + at, Count(token), chunk.tokens + 2 * half_);
    for (size_t i = 0; i < kKeyParts; ++i) TransposeKeys(i, chunk);
    for (size_t half = 0; half < 2; ++half) {
      products_.Zero();
      for (size_t step = 0; step < half_; step += kAmxWords) {
        products_.template Add<4, kKeyParts>(chunk.tokens + step, half_, 4 * half_,
                                             s_.words + half * half_ + step, 2 * half_);
      }
      products_.template Store<4>(chunk.couplings->tokens + half * kAmxColumns, kTileTokens);
    }
    Couple(token, Count(token), chunk.couplings);
  }

 private:
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;
  static constexpr size_t kLanes = hn::MaxLanes(D());
  static constexpr size_t kRowVecs = kTileTokens / kLanes;

  size_t Count(size_t token) const { return HWY_MIN(kTileTokens, a_.length - token); }

  void PackTokens(const T* HWY_RESTRICT in, size_t count, std::uint32_t* HWY_RESTRICT out) const {
    // Both types have 16 bits.
    const auto* bits = reinterpret_cast<const hwy::bfloat16_t*>(in);
    const auto row = [&](size_t i) { return i < count ? bits + i * a_.key_dim : nullptr; };
    if constexpr (kPairs) {
      PackAmxRows(row, kTileTokens, a_.key_dim, out);
    } else {
      PackAmxRows(row, kTileTokens, a_.key_dim, s_.words);  // not in use yet
      for (size_t tile = 0; tile < 2 * half_; tile += kAmxWords) {
        SplitAmxTile(s_.words + tile, out + tile, out + 4 * half_ + tile);
      }
    }
  }

  /// Transposes a part of the keys: as pairs of elements for products with tokens, and as rows of
  /// an element of all keys for products with addends, in pairs of tokens i and 16 + i.
  void TransposeKeys(size_t part, const TileChunk& chunk) const {
    const hn::RebindToUnsigned<D> du;
    const auto upper = hn::Set(du, 0xFFFF0000u);
    const auto lower = hn::Set(du, 0x0000FFFFu);
    for (size_t step = 0; step < steps_; ++step) {
      const std::uint32_t* keys = chunk.tokens + part * 4 * half_ + step * kAmxWords;
      std::uint32_t* first = s_.words + part * 2 * half_ + step * kAmxWords;
      std::uint32_t* second = first + half_;
      TransposeAmx(keys, first);
      TransposeAmx(keys + half_, second);
      std::uint32_t* out = chunk.columns + (part * steps_ + step) * 2 * kAmxWords;
      for (size_t i = 0; i < kAmxWords; i += kLanes) {
        const auto a = hn::Load(du, first + i), b = hn::Load(du, second + i);
        // Row i / 16 of pairs becomes two rows.
        std::uint32_t* to = out + 2 * (i - i % kAmxColumns) + i % kAmxColumns;
        hn::Store(hn::Or(hn::And(a, lower), hn::ShiftLeft<16>(b)), du, to);
        hn::Store(hn::Or(hn::ShiftRight<16>(a), hn::And(b, upper)), du, to + kAmxColumns);
      }
    }
  }

  /// 1, or what divides a key or query by its length.
  float Norm(const T* in) const {
    if (!a_.normalize) return 1;
    return InverseSqrt(SumOver(Square(), D(), in, a_.key_dim) + 1e-6f);
  }

  /// Sets steps[i] = exp(in[i]); those of missing tokens are 1.
  static void DecaysOf(const float* HWY_RESTRICT in, size_t count, float* HWY_RESTRICT steps) {
    const D d;
    for (size_t i = 0; i < kTileTokens; i += kLanes) {
      const V x = i < count ? hn::LoadN(d, in + i, count - i) : hn::Zero(d);
      hn::Store(ExpNonPositive(d, x), d, steps + i);
      if (hn::AllTrue(d, hn::Le(x, hn::Set(d, 80.0f)))) continue;  // not NaN either
      for (size_t j = i; j < HWY_MIN(i + kLanes, count); ++j) steps[j] = ExpOf(in[j]);
    }
  }

  /// Replaces the dot products of the chunk's tokens by their couplings. The decay from token j to
  /// i, row by row: that to token i - 1, times the decay of token i.
  void Couple(size_t token, size_t count, TileCoefficients* HWY_RESTRICT c) const {
    const D d;
    alignas(64) float steps[kTileTokens], norms[kTileTokens] = {};
    DecaysOf(item_.log_decay + token, count, steps);
    for (size_t i = 0; i < count; ++i) norms[i] = Norm(item_.key + (token + i) * a_.key_dim);
    V decays[kRowVecs];
    for (size_t v = 0; v < kRowVecs; ++v) decays[v] = hn::Zero(d);
    c->decay = 1;
    for (size_t i = 0; i < kTileTokens; ++i) {
      const bool present = i < count;
      c->beta[i] = present ? item_.beta[token + i] : 0;
      c->decay *= steps[i];
      const float read = present ? item_.scale * Norm(item_.query + (token + i) * a_.key_dim) : 0;
      c->known[i] = c->beta[i] * c->decay * norms[i];
      c->seen[i] = c->decay * read;
      for (size_t v = 0; v < kRowVecs; ++v) {
        const V lane = hn::Iota(d, static_cast<float>(v * kLanes));
        const V decayed = hn::Mul(decays[v], hn::Set(d, steps[i]));
        const V one = hn::Set(d, 1.0f);
        decays[v] = hn::IfThenElse(hn::Eq(lane, hn::Set(d, static_cast<float>(i))), one, decayed);
        const V factor = hn::Mul(decays[v], hn::Load(d, norms + v * kLanes));
        float* keys = c->tokens + i * kTileTokens + v * kLanes;
        Scale(hn::Mul(factor, hn::Set(d, c->beta[i] * norms[i])), keys);
        Scale(hn::Mul(factor, hn::Set(d, read)), keys + kTileTokens * kTileTokens);
        hn::Store(factor, d, c->write + v * kLanes);  // at last, those of the last token
      }
    }
  }

  static HWY_INLINE void Scale(V factor, float* HWY_RESTRICT x) {
    hn::Store(hn::Mul(factor, hn::Load(D(), x)), D(), x);
  }

  const GatedDeltaProblem& a_;
  const GatedDeltaItem<T>& item_;
  const GatedDeltaTileScratch& s_;
  Products& products_;
  const size_t steps_;  // tiles of depth of a key
  const size_t half_;   // words of a part of 16 keys
};

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
