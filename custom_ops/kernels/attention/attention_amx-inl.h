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
        depth_(RoundUp(HWY_MAX(a.head_dim, size_t{1}), kAmxDepthStep)),
        columns_(RoundUp(a.value_dim, kAmxValueStep)) {}

  void Run() {
    const KeyRange range = SetRows(a_, rows_, s_);
    const size_t padded = RoundUp(rows_.count, kAmxPanelRows);
    for (size_t row = 0; row < padded; ++row) {
      // Lanes without a row start with row 0's state and zero queries; they are never stored.
      StartSoftmax(a_, rows_, row < rows_.count ? row : 0, s_.best + row, s_.total + row);
      s_.best[row] *= kLog2e;
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
      const std::int64_t next = key + std::int64_t(size);
      // A block of SetAhead is a unit of the products of a panel.
      const size_t units = size / kAmxPairDepth * (depth_ / kAmxDepthStep + ColumnPairs());
      SetAhead(a_, rows_, next, HWY_MIN(next + std::int64_t(size), range.last),
               padded / kAmxPanelRows * units, &ahead_);
      Step(static_cast<size_t>(key), HWY_MIN(static_cast<size_t>(range.last - key), size));
    }
    for (size_t row = 0; row < rows_.count; row += kAmxPanelRows) {
      StorePanel(s_.output + row * columns_, s_.total + row, rows_.count - row, a_.value_dim,
                 Width(row), rows_.output + row * a_.value_dim);
    }
  }

 private:
  static constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());
  static constexpr float kLog2e = ExpConstants<float>::kLog2e;
  static_assert(kAmxTileKeys % kAmxPairDepth == 0 && kAmxPanelRows == 2 * kAmxColumns,
                "whole tiles");

  size_t Width(size_t row) const {
    return rows_.count - row > kAmxColumns ? kAmxPanelRows : kAmxColumns;
  }

  /// A panel's part of a step. Scores and weights alternate between two buffers.
  struct Panel {
    size_t row;
    size_t rights;  // tiles of rows: 2 or 1
    size_t from;    // first key that is multiplied
    size_t keys;
    size_t blocks;  // of 32 keys
    bool partial;   // whether a row does not attend to all keys
    size_t buffer;
    size_t scored;  // blocks with scores, and then units of the next block
    size_t inner;
    size_t added;  // blocks of weights whose values have been added
    size_t pair;   // the next unit of values: of this pair of tiles of columns, and this block
    size_t block;
  };

  /// While the weights of a block of keys are computed, tiles multiply the scores of the next block
  /// and values of the previous panel.
  void Step(size_t key, size_t count) {
    packed_ = false;
    all_blocks_ = RoundUp(count, kAmxPairDepth) / kAmxPairDepth;
    Panel previous = {}, current = {};
    Next(0, key, count, &current);
    if (current.blocks != 0) ScoreBlock(&current);
    while (current.blocks != 0) {
      Panel before = previous;
      previous = current;
      if (current.rights == 2) {
        current = Weights<2>(&before, previous, key, count);
      } else {
        current = Weights<1>(&before, previous, key, count);
      }
    }
    if (previous.blocks != 0) AddRest(&previous, previous.blocks);
  }

  /// Sets the panel from `row` on that attends to keys of the tile; none if it has no blocks.
  void Next(size_t row, size_t key, size_t count, Panel* panel) {
    const size_t buffer = 1 - panel->buffer;
    *panel = {};
    for (; row < rows_.count; row += kAmxPanelRows) {
      const bool whole = Width(row) == kAmxPanelRows;
      if (!(whole ? SetCover<2>(row, key, count, panel) : SetCover<1>(row, key, count, panel))) {
        continue;
      }
      panel->buffer = buffer;
      Pack(key, count);
      return;
    }
  }

  template <size_t kRights>
  bool SetCover(size_t row, size_t key, size_t count, Panel* panel) {
    constexpr size_t kVecs = kRights * kAmxColumns / kLanes;
    const Cover<kVecs> cover = CoverPanel<kVecs>(a_, rows_, s_, row, key, count);
    const size_t first = cover.First(), last = cover.Last();
    if (first >= last) return false;
    panel->row = row;
    panel->rights = kRights;
    panel->from = first / kAmxPairDepth * kAmxPairDepth;
    panel->keys = last - panel->from;
    panel->blocks = RoundUp(panel->keys, kAmxPairDepth) / kAmxPairDepth;
    panel->partial = cover.partial || panel->from != first;
    return true;
  }

  /// Packs keys and values when the first panel needs them.
  void Pack(size_t key, size_t count) {
    if (packed_) return;
    packed_ = true;
    PackAmxKeys(rows_.key, key, count, a_.head_dim, Words(s_.keys));
    PackAmxValues(rows_.value, key, count, a_.value_dim, Words(s_.values));
  }

  static std::uint32_t* Words(float* p) { return reinterpret_cast<std::uint32_t*>(p); }

  template <size_t kRights>
  float* ScoresOf(const Panel& panel, size_t block) const {
    return s_.Scores(panel.buffer) + (panel.from + block * kAmxPairDepth) * kRights * kAmxColumns;
  }

  /// Computes the weights of `panel`, whose first block has its scores, adds the values of
  /// `before`, and returns the next panel with the scores of its first block.
  template <size_t kRights>
  Panel Weights(Panel* before, Panel& panel, size_t key, size_t count) {
    constexpr size_t kVecs = kRights * kAmxColumns / kLanes;
    Panel next = panel;
    Panel* scored = &panel;
    for (size_t block = 0; block < panel.blocks; ++block) {
      const float scale = HideBlock<kRights>(panel, block, key, count);
      if (block + 1 == panel.blocks) {
        Next(panel.row + kAmxPanelRows, key, count, &next);
        scored = &next;
      }
      // Products of 2 x 2 tiles. Each pair of columns is added in one go, with sums in registers.
      const size_t pairs = before->blocks == 0 ? 0 : ColumnPairs() * (block + 1) / panel.blocks;
      const size_t scores = scored->blocks == 0 ? 0 : depth_ / kAmxDepthStep;
      const size_t values = 2 * (pairs - before->pair) * (before->blocks - before->added);
      const size_t products = values + scores;
      size_t done = 0;
      // Inline: a call between the vectors would save and restore all registers.
      const auto multiply = [&](size_t part, size_t parts) __attribute__((always_inline)) {
        for (const size_t end = products * part / parts; done < end;) {
          // Values first: the next panel's scores replace these weights.
          if (done < values) {
            AddValues(before, before->blocks);
            done += 2;
          } else {
            Score(scored);
            done += 1;
          }
        }
      };
      float* weights = ScoresOf<kRights>(panel, block);
      const size_t keys = HWY_MIN(panel.keys - block * kAmxPairDepth, kAmxPairDepth);
      if (SoftmaxPairs<kVecs>(weights, keys, scale, s_.best + panel.row, s_.total + panel.row,
                              s_.rescale, multiply)) {
        // Weights of earlier blocks are relative to the earlier score.
        if (block > 0) AddRest(&panel, block);
        ScalePanel<kVecs>(s_.output + panel.row * columns_, columns_, s_.rescale);
      }
    }
    return next;
  }

  /// Applies softcap and mask to a block of scores. Returns the factor by which they become
  /// exponents of two.
  template <size_t kRights>
  float HideBlock(const Panel& panel, size_t block, size_t key, size_t count) {
    constexpr size_t kWidth = kRights * kAmxColumns;
    const size_t first = panel.from + block * kAmxPairDepth;
    const size_t keys = HWY_MIN(panel.from + panel.keys - first, kAmxPairDepth);
    float* scores = ScoresOf<kRights>(panel, block);
    auto scale = static_cast<float>(a_.scale);
    // A factor above zero keeps -inf, so softmax can multiply by it.
    if (a_.softcap > 0 || HasBias(a_) || !(scale > 0)) {
      ScaleScores(scores, keys * kWidth, scale);
      scale = 1;
    }
    Cover<kWidth / kLanes> cover;
    if (HasBias(a_)) {
      cover.SetAll(0, keys, true);
      HideScores(a_, rows_, s_, cover, panel.row, key + first, keys, scores);
    } else {
      cover.SetAll(first, first + keys, panel.partial);
      HideScores(a_, rows_, s_, cover, panel.row, key, count, scores);
    }
    return scale * kLog2e;
  }

  static void ScaleScores(float* HWY_RESTRICT scores, size_t count, float scale) {
    const hn::ScalableTag<float> d;
    const auto factor = hn::Set(d, scale);
    for (size_t i = 0; i < count; i += kLanes) {
      hn::Store(hn::Mul(hn::Load(d, scores + i), factor), d, scores + i);
    }
  }

  /// Multiplies the scores of the next block.
  void ScoreBlock(Panel* panel) {
    for (size_t i = 0; i < depth_ / kAmxDepthStep; ++i) Score(panel);
  }

  /// Multiplies the next unit of scores.
  HWY_INLINE void Score(Panel* panel) {
    if (panel->rights == 2) {
      ScoreUnit<2>(*panel);
    } else {
      ScoreUnit<1>(*panel);
    }
    ahead_.Fetch();
    if (++panel->inner < depth_ / kAmxDepthStep) return;
    panel->inner = 0;
    ++panel->scored;
  }

  /// scores[key, row] += key . query for a block of 32 keys and 32 elements.
  template <size_t kRights>
  HWY_INLINE void ScoreUnit(const Panel& panel) {
    const size_t steps = depth_ / kAmxDepthStep, i = panel.inner;
    const size_t block = panel.from / kAmxPairDepth + panel.scored;
    const std::uint32_t* keys = Words(s_.keys) + (block * 2 * steps + i) * kAmxWords;
    const std::uint32_t* query = Words(s_.query) + panel.row * depth_ / 2 + i * kRights * kAmxWords;
    if (i == 0) {
      ZeroSums(tiles_);
    }
    LoadLefts<2>(tiles_, keys, steps * kAmxWords);
    LoadRights<kRights>(tiles_, query, kAmxColumns, kRights * kAmxRowBytes);
    AddProducts<2, kRights>(tiles_);
    if (i + 1 == steps) StoreSums<2, kRights>(tiles_, ScoresOf<kRights>(panel, panel.scored));
  }

  /// Pairs of tiles of columns of the values.
  size_t ColumnPairs() const { return (columns_ + 2 * kAmxRows - 1) / (2 * kAmxRows); }

  /// Adds the values of the first `blocks` blocks that have not been added.
  void AddRest(Panel* panel, size_t blocks) {
    for (size_t i = (blocks - panel->added) * ColumnPairs(); i > 0; --i) AddValues(panel, blocks);
    panel->added = panel->block = blocks;
    panel->pair = 0;
  }

  /// Multiplies the next unit of values of blocks up to `blocks`.
  HWY_INLINE void AddValues(Panel* panel, size_t blocks) {
    const bool both = (panel->pair + 1) * 2 * kAmxRows <= columns_;
    if (panel->rights == 2) {
      both ? ValueUnit<2, 2>(*panel, blocks) : ValueUnit<1, 2>(*panel, blocks);
    } else {
      both ? ValueUnit<2, 1>(*panel, blocks) : ValueUnit<1, 1>(*panel, blocks);
    }
    ahead_.Fetch();
    if (++panel->block < blocks) return;
    panel->block = panel->added;
    ++panel->pair;
  }

  /// output[column, row] += values . weights for kLefts tiles of columns and a block of 32 keys.
  template <size_t kLefts, size_t kRights>
  HWY_INLINE void ValueUnit(const Panel& panel, size_t blocks) {
    const size_t column = panel.pair * 2 * kAmxRows;
    float* out = s_.output + panel.row * columns_ + column * kRights * kAmxColumns;
    if (panel.block == panel.added) LoadSums<kLefts, kRights>(tiles_, out);
    const size_t block = panel.from / kAmxPairDepth + panel.block;
    const std::uint32_t* values =
        Words(s_.values) + (column / kAmxRows * all_blocks_ + block) * kAmxWords;
    LoadLefts<kLefts>(tiles_, values, all_blocks_ * kAmxWords);
    const float* weights = ScoresOf<kRights>(panel, panel.block);
    for (size_t part = 0; part < 2; ++part, weights += kRights * kAmxColumns) {
      LoadRights<kRights>(tiles_, weights, kAmxColumns, 2 * kRights * kAmxRowBytes);
      AddProducts<kLefts, kRights>(tiles_);
    }
    if (panel.block + 1 == blocks) StoreSums<kLefts, kRights>(tiles_, out);
  }

  const AttentionProblem& a_;
  const AttentionRows<T> rows_;
  const AttentionAmxScratch s_;
  const size_t depth_;    // head_dim, padded
  const size_t columns_;  // value_dim, padded
  bool packed_ = false;
  size_t all_blocks_ = 0;  // of 32 keys in the step
  Ahead ahead_ = {};
  Tiles tiles_;
};

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
