// Attention for a tile of up to kTileRows rows, with rows in the lanes. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_ATTENTION_TILE_INL_H_
#undef COREAI_KERNELS_ATTENTION_TILE_INL_H_
#else
#define COREAI_KERNELS_ATTENTION_TILE_INL_H_
#endif

#include "kernels/attention/attention_hide-inl.h"
#include "kernels/attention/attention_multiply-inl.h"
#include "kernels/attention/attention_pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// A tile's rows are split into panels of up to kMaxVecs vectors; the panel that begins at row r
/// has its queries at query + r * head_dim and its sums at output + r * value_dim.
template <typename T>
class AttentionTile {
 public:
  using W = Wide<T>;

  AttentionTile(const AttentionProblem& a, size_t item, void* memory)
      : a_(a), rows_(a, item), s_(a, memory) {
    for (W& one : ones_) one = 1;
  }

  void Run() {
    KeyRange range = SetRows(a_, rows_, s_);
    // Lanes without a row start with row 0's state and zero queries; they are never stored.
    const size_t padded = (rows_.count + kLanes - 1) / kLanes * kLanes;
    for (size_t row = 0; row < padded; ++row) {
      StartSoftmax(a_, rows_, row < rows_.count ? row : 0, s_.best + row, s_.total + row);
    }
    hwy::ZeroBytes(s_.output, a_.value_dim * padded * sizeof(W));
    for (size_t row = 0; row < rows_.count; row += Width(row)) {
      PackQueries<false>(rows_.query + row * rows_.query_step, rows_.query_step, rows_.count - row,
                         a_.head_dim, Width(row), static_cast<W>(a_.scale),
                         s_.query + row * a_.head_dim);
    }
    // Tiles with nearly equal numbers of keys, in whole blocks.
    const auto keys = static_cast<size_t>(HWY_MAX(range.last - range.first, std::int64_t{1}));
    const size_t tiles = (keys + kTileKeys - 1) / kTileKeys;
    size_t size = HWY_MIN(((keys + tiles - 1) / tiles + 7) / 8 * 8, kTileKeys);
    if (a_.deterministic) {
      // Tiles of the same keys, whichever rows are computed together. Hidden keys have weight zero.
      size = kTileKeys;
      range.first -= range.first % std::int64_t(kTileKeys);
    }
    for (std::int64_t key = range.first; key < range.last; key += std::int64_t(size)) {
      const auto left = static_cast<size_t>(range.last - key);
      FetchAhead(key + std::int64_t(size), HWY_MIN(key + 2 * std::int64_t(size), range.last), size);
      Step(static_cast<size_t>(key), HWY_MIN(left, size));
    }
    for (size_t row = 0; row < rows_.count; row += Width(row)) {
      StorePanel(s_.output + row * a_.value_dim, s_.total + row, rows_.count - row, a_.value_dim,
                 Width(row), rows_.output_step, rows_.output + row * rows_.output_step);
    }
  }

 private:
  static constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<W>());

  /// Vectors of rows in the panel at `row`; the remaining vectors are split into nearly equal
  /// panels.
  size_t Vectors(size_t row) const {
    const size_t left = (rows_.count - row + kLanes - 1) / kLanes;
    const size_t panels = (left + kMaxVecs - 1) / kMaxVecs;
    return (left + panels - 1) / panels;
  }
  size_t Width(size_t row) const { return Vectors(row) * kLanes; }

  /// Schedules the prefetch of keys and values [key, end) during a step over `size` keys.
  void FetchAhead(std::int64_t key, std::int64_t end, size_t size) {
    // The codes of a tile are an eighth of its floats or less, and are unpacked at once.
    if (a_.codes.bits != 0) return;
    const size_t panels = (rows_.count + kMaxVecs * kLanes - 1) / (kMaxVecs * kLanes);
    SetAhead(a_, rows_, key, end, panels * (size + a_.value_dim) / kBlockRows<kMaxVecs>, &ahead_);
  }

  void Step(size_t key, size_t count) {
    packed_ = false;
    for (size_t row = 0; row < rows_.count; row += Width(row)) {
      StepPanel<kMaxVecs>(Vectors(row), row, key, count);
    }
  }

  /// Packs a tile's keys and values when the first panel needs them.
  void Pack(size_t key, size_t count) {
    if (packed_) return;
    packed_ = true;
    if (a_.codes.bits == 8) return PackCodes<AttentionNbits<T, 8>>(key, count);
    if (a_.codes.bits == 4) return PackCodes<AttentionNbits<T, 4>>(key, count);
    PackKeys(rows_.key, key, count, a_.head_dim, s_.keys);
    PackValues(rows_.value, key, count, a_.value_dim, s_.values);
  }

  template <class Codes>
  HWY_NOINLINE void PackCodes(size_t key, size_t count) {
    const Codes codes(a_, rows_);
    Codes::Dequantize(codes.key, codes.key_scales, key, count, a_.head_dim, s_.floats);
    PackKeys(AttentionTokens<W>(s_.floats, a_.head_dim), 0, count, a_.head_dim, s_.keys);
    Codes::Dequantize(codes.value, codes.value_scales, key, count, a_.value_dim, s_.floats);
    PackValues(AttentionTokens<W>(s_.floats, a_.value_dim), 0, count, a_.value_dim, s_.values);
  }

  template <size_t kVecs>
  void StepPanel(size_t vectors, size_t row, size_t key, size_t count) {
    if constexpr (kVecs > 1) {
      if (vectors < kVecs) return StepPanel<kVecs - 1>(vectors, row, key, count);
    }
    constexpr size_t kWidth = kVecs * kLanes;
    static_assert(kVecs <= kMaxVecs && kWidth <= kMaxPanelRows, "the scratch memory's sizes");
    Cover<kVecs> cover = CoverPanel<kVecs>(a_, rows_, s_, row, key, count);
    if (cover.First() >= cover.Last()) return;
    Pack(key, count);
    cover.Round(kBlockRows<kVecs>);
    const size_t from = cover.First();
    const size_t keys = cover.Last() - from;
    Scores<kVecs>(cover, row);
    W* scores = s_.scores + from * kWidth;
    HideScores(a_, rows_, s_, cover, row, key, count, scores);
    SoftmaxTile<kVecs>(scores, keys, s_.best + row, s_.total + row, s_.rescale);
    AddValues<kVecs>(cover, row, count);
  }

  /// scores[key, row] = key . query; scores of keys outside a vector's range are not written.
  template <size_t kVecs>
  void Scores(const Cover<kVecs>& cover, size_t row) {
    const PackedKeys<W> left = {s_.keys, KeyChunk(a_.head_dim)};
    cover.ForEachRun([&](size_t key, size_t count, size_t v, size_t vecs) {
      const PanelPart<W> part = {s_.query + row * a_.head_dim + v * kLanes, a_.head_dim, ones_,
                                 s_.scores + v * kLanes, kVecs * kLanes};
      MultiplyVecs<Products::kPlain, kBlockRows<kVecs>, kVecs>(vecs, left, key, key + count, part,
                                                               ahead_);
    });
  }

  /// output[column, row] = output[column, row] * rescale[row] + values . scores.
  template <size_t kVecs>
  void AddValues(const Cover<kVecs>& cover, size_t row, size_t tile_keys) {
    W* output = s_.output + row * a_.value_dim;
    bool rescaled = false;
    cover.ForEachRun([&](size_t key, size_t count, size_t v, size_t vecs) {
      if (!rescaled && vecs < kVecs) {
        ScalePanel<kVecs>(output, a_.value_dim, s_.rescale);
        rescaled = true;
      }
      const PackedValues<W> left = {s_.values, a_.value_dim, tile_keys, key};
      const PanelPart<W> part = {s_.scores + (key * kVecs + v) * kLanes, count,
                                 rescaled ? ones_ : s_.rescale, output + v * kLanes,
                                 kVecs * kLanes};
      MultiplyVecs<Products::kAdded, kBlockRows<kVecs>, kVecs>(vecs, left, 0, a_.value_dim, part,
                                                               ahead_);
      rescaled = true;
    });
  }

  const AttentionProblem& a_;
  const AttentionRows<T> rows_;
  const AttentionScratch<W> s_;
  bool packed_ = false;
  Ahead ahead_ = {};
  alignas(64) W ones_[kMaxPanelRows];
};

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
