// Attention of bfloat16 by products of tile registers. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_ATTENTION_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_ATTENTION_AMX_INL_H_
#undef COREAI_KERNELS_ATTENTION_AMX_INL_H_
#else
#define COREAI_KERNELS_ATTENTION_AMX_INL_H_
#endif

#include "kernels/attention/attention_amx_pack-inl.h"
#include "kernels/attention/attention_hide-inl.h"
#include "kernels/attention/attention_pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// c += a * b over tiles of the inner dimension, for kLefts tiles of rows (registers 4 and 5) and
/// kRights tiles of columns (6 and 7). Sums are registers 0 to 3.
template <size_t kLefts, size_t kRights, class Tiles>
HWY_INLINE void AddTileProducts(Tiles& tiles) {
  tiles.template AddPairs<0, 4, 6>();
  if constexpr (kRights == 2) tiles.template AddPairs<1, 4, 7>();
  if constexpr (kLefts == 2) tiles.template AddPairs<2, 5, 6>();
  if constexpr (kLefts == 2 && kRights == 2) tiles.template AddPairs<3, 5, 7>();
}

/// The same tile of rows as AttentionTile; rows are the columns of all products, so that masks and
/// softmax are the same as well. Panels have kAmxPanelRows rows, the last one half of that if this
/// is enough. Scores are exact products of bfloat16, summed in float32. Weights are multiplied as
/// sums of two bfloat16, so that results agree with those of other processors.
template <class Tiles>
class AttentionAmx {
 public:
  using T = hwy::bfloat16_t;

  AttentionAmx(const AttentionProblem& a, size_t item, void* memory)
      : a_(a),
        rows_(a, item),
        s_(a, memory),
        depth_(RoundUp(a.head_dim, kAmxDepthStep)),
        columns_(RoundUp(a.value_dim, kAmxValueStep)) {}

  void Run() {
    const KeyRange range = SetRows(a_, rows_, s_);
    const size_t padded = RoundUp(rows_.count, kAmxPanelRows);
    for (size_t row = 0; row < padded; ++row) {
      // Lanes without a row start with row 0's state and zero queries; they are never stored.
      StartSoftmax(a_, rows_, row < rows_.count ? row : 0, s_.best + row, s_.total + row);
    }
    hwy::ZeroBytes(s_.output, columns_ * padded * sizeof(float));
    hwy::ZeroBytes(s_.query, depth_ / 2 * padded * sizeof(float));
    for (size_t row = 0; row < rows_.count; row += kAmxPanelRows) {
      PackQueries<true>(rows_.query + row * a_.head_dim, rows_.count - row, a_.head_dim, Width(row),
                        1.0f, s_.query + row * depth_ / 2);
    }
    // Steps with nearly equal numbers of keys, in whole tiles.
    const auto keys = static_cast<size_t>(HWY_MAX(range.last - range.first, std::int64_t{1}));
    const size_t steps = (keys + kAmxTileKeys - 1) / kAmxTileKeys;
    const size_t size = RoundUp((keys + steps - 1) / steps, kAmxPairDepth);
    for (std::int64_t key = range.first; key < range.last; key += std::int64_t(size)) {
      Step(static_cast<size_t>(key), HWY_MIN(static_cast<size_t>(range.last - key), size));
    }
    for (size_t row = 0; row < rows_.count; row += kAmxPanelRows) {
      StorePanel(s_.output + row * columns_, s_.total + row, rows_.count - row, a_.value_dim,
                 Width(row), rows_.output + row * a_.value_dim);
    }
  }

 private:
  static constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());
  static_assert(kAmxTileKeys % kAmxPairDepth == 0 && kAmxPanelRows == 2 * kAmxColumns,
                "whole tiles");

  size_t Width(size_t row) const {
    return rows_.count - row > kAmxColumns ? kAmxPanelRows : kAmxColumns;
  }

  void Step(size_t key, size_t count) {
    packed_ = false;
    for (size_t row = 0; row < rows_.count; row += kAmxPanelRows) {
      if (Width(row) == kAmxPanelRows) {
        StepPanel<2>(row, key, count);
      } else {
        StepPanel<1>(row, key, count);
      }
    }
  }

  /// Packs keys and values when the first panel needs them.
  void Pack(size_t key, size_t count) {
    if (packed_) return;
    packed_ = true;
    PackAmxKeys(rows_.key + key * a_.head_dim, count, a_.head_dim, Words(s_.keys));
    PackAmxValues(rows_.value + key * a_.value_dim, count, a_.value_dim, Words(s_.values));
  }

  static std::uint32_t* Words(float* p) { return reinterpret_cast<std::uint32_t*>(p); }

  template <size_t kRights>
  void StepPanel(size_t row, size_t key, size_t count) {
    constexpr size_t kWidth = kRights * kAmxColumns;
    constexpr size_t kVecs = kWidth / kLanes;
    Cover<kVecs> cover = CoverPanel<kVecs>(a_, rows_, s_, row, key, count);
    if (cover.First() >= cover.Last()) return;
    Pack(key, count);
    // All vectors of the panel are multiplied; softmax replaces what a row does not attend to.
    const size_t from = cover.First() / kAmxPairDepth * kAmxPairDepth;
    cover.SetAll(from, cover.Last(), cover.partial || from != cover.First());
    const size_t keys = cover.Last() - from;
    const size_t blocks = RoundUp(keys, kAmxPairDepth) / kAmxPairDepth;
    for (size_t i = 0; i < blocks; ++i) Score<kRights>(row, from / kAmxPairDepth + i);
    float* scores = s_.scores + from * kWidth;
    auto scale = static_cast<float>(a_.scale);
    // A factor above zero keeps -inf, so softmax can multiply by it.
    if (a_.softcap > 0 || HasBias(a_) || !(scale > 0)) {
      ScaleScores(scores, keys * kWidth, scale);
      scale = 1;
    }
    HideScores(a_, rows_, s_, cover, row, key, count);
    float* output = s_.output + row * columns_;
    if (SoftmaxPairs<kVecs>(scores, keys, scale, s_.best + row, s_.total + row, s_.rescale, s_)) {
      ScalePanel<kVecs>(output, columns_, s_.rescale);
    }
    const size_t all = RoundUp(count, kAmxPairDepth) / kAmxPairDepth;
    const std::uint32_t* values = Words(s_.values) + from / kAmxPairDepth * kAmxWords;
    size_t column = 0;
    for (; column + 2 * kAmxRows <= columns_; column += 2 * kAmxRows) {
      AddValues<2, kRights>(values + column / kAmxRows * all * kAmxWords, all, blocks,
                            output + column * kWidth);
    }
    if (column < columns_) {
      AddValues<1, kRights>(values + column / kAmxRows * all * kAmxWords, all, blocks,
                            output + column * kWidth);
    }
  }

  static void ScaleScores(float* HWY_RESTRICT scores, size_t count, float scale) {
    const hn::ScalableTag<float> d;
    const auto factor = hn::Set(d, scale);
    for (size_t i = 0; i < count; i += kLanes) {
      hn::Store(hn::Mul(hn::Load(d, scores + i), factor), d, scores + i);
    }
  }

  /// scores[key, row] = key . query for a block of 32 keys.
  template <size_t kRights>
  void Score(size_t row, size_t block) {
    constexpr size_t kStride = kRights * kAmxRowBytes;
    const size_t steps = depth_ / kAmxDepthStep;
    const std::uint32_t* keys = Words(s_.keys) + block * 2 * steps * kAmxWords;
    const std::uint32_t* query = Words(s_.query) + row * depth_ / 2;
    tiles_.template Zero<0>();
    tiles_.template Zero<1>();
    tiles_.template Zero<2>();
    tiles_.template Zero<3>();
    for (size_t i = 0; i < steps; ++i) {
      tiles_.template Load<4>(keys + i * kAmxWords, kAmxRowBytes);
      tiles_.template Load<6>(query, kStride);
      if constexpr (kRights == 2) tiles_.template Load<7>(query + kAmxColumns, kStride);
      tiles_.template Load<5>(keys + (steps + i) * kAmxWords, kAmxRowBytes);
      AddTileProducts<2, kRights>(tiles_);
      query += kRights * kAmxWords;
    }
    float* out = s_.scores + block * kAmxPairDepth * kRights * kAmxColumns;
    StoreSums<2, kRights>(out);
  }

  /// output[column, row] += values . weights for kLefts tiles of columns, of which `stride` tiles
  /// of keys are packed and `blocks` multiplied.
  template <size_t kLefts, size_t kRights>
  void AddValues(const std::uint32_t* HWY_RESTRICT values, size_t stride, size_t blocks,
                 float* HWY_RESTRICT out) {
    constexpr size_t kStride = kRights * kAmxRowBytes;
    LoadSums<kLefts, kRights>(out);
    for (size_t i = 0; i < blocks; ++i) {
      tiles_.template Load<4>(values + i * kAmxWords, kAmxRowBytes);
      if constexpr (kLefts == 2) {
        tiles_.template Load<5>(values + (stride + i) * kAmxWords, kAmxRowBytes);
      }
      for (const std::uint32_t* weights : {s_.high, s_.low}) {
        weights += i * kRights * kAmxWords;
        tiles_.template Load<6>(weights, kStride);
        if constexpr (kRights == 2) tiles_.template Load<7>(weights + kAmxColumns, kStride);
        AddTileProducts<kLefts, kRights>(tiles_);
      }
    }
    StoreSums<kLefts, kRights>(out);
  }

  // Sums are [kLefts * 16, kRights * 16].
  template <size_t kLefts, size_t kRights>
  void LoadSums(const float* HWY_RESTRICT sums) {
    constexpr size_t kStride = kRights * kAmxRowBytes;
    tiles_.template Load<0>(sums, kStride);
    if constexpr (kRights == 2) tiles_.template Load<1>(sums + kAmxColumns, kStride);
    const float* below = sums + kRights * kAmxWords;
    if constexpr (kLefts == 2) tiles_.template Load<2>(below, kStride);
    if constexpr (kLefts == 2 && kRights == 2) {
      tiles_.template Load<3>(below + kAmxColumns, kStride);
    }
  }

  template <size_t kLefts, size_t kRights>
  void StoreSums(float* HWY_RESTRICT sums) {
    constexpr size_t kStride = kRights * kAmxRowBytes;
    tiles_.template Store<0>(sums, kStride);
    if constexpr (kRights == 2) tiles_.template Store<1>(sums + kAmxColumns, kStride);
    float* below = sums + kRights * kAmxWords;
    if constexpr (kLefts == 2) tiles_.template Store<2>(below, kStride);
    if constexpr (kLefts == 2 && kRights == 2) {
      tiles_.template Store<3>(below + kAmxColumns, kStride);
    }
  }

  const AttentionProblem& a_;
  const AttentionRows<T> rows_;
  const AttentionAmxScratch s_;
  const size_t depth_;    // head_dim, padded
  const size_t columns_;  // value_dim, padded
  bool packed_ = false;
  Tiles tiles_;
};

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
