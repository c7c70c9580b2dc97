#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/attention.h"

namespace coreai {

/// Maximum number of rows (queries) in a tile. With more rows, keys and values are fetched less
/// often; a tile's rows, keys and values stay in the second-level cache.
inline constexpr std::size_t kTileRows = 288;
/// Number of rows in a tile of a problem that would otherwise have too few tiles for the threads.
inline constexpr std::size_t kSmallTileRows = 96;
inline constexpr std::size_t kFewTiles = 8;
inline constexpr std::size_t kTileKeys = 96;
/// Maximum number of rows in a panel, which is computed as a whole. Rows are in the lanes, so that
/// softmax needs no sums across lanes and neither keys nor values are transposed. A panel's queries
/// and a block of keys stay in the first-level cache.
inline constexpr std::size_t kMaxPanelRows = 48;
/// Keys are packed in chunks of kPackRows keys: kPackDepth elements of every key, then the next
/// kPackDepth elements of every key. Values are packed in chunks of kPackRows columns.
inline constexpr std::size_t kPackRows = 24;
inline constexpr std::size_t kPackDepth = 16;

/// Sizes of tiles and panels where products are those of tile registers (AMX).
inline constexpr std::size_t kAmxTileKeys = 128;
inline constexpr std::size_t kAmxPanelRows = 32;
/// Multiples to which head_dim, value_dim and the keys of a tile are padded there.
inline constexpr std::size_t kAmxDepthStep = 32;
inline constexpr std::size_t kAmxValueStep = 16;
inline constexpr std::size_t kMaxTileKeys = kAmxTileKeys;
/// Maximum number of rows in a tile there, and how many tiles of that size a problem must have.
/// Keys and values are packed for each tile, which takes as long as a fifth of the rest for
/// kTileRows rows; with kLongTileRows, a block of 32 × 32 scores took 755 instead of 806 ns (4096
/// tokens, heads of 128, AMX, 2026-11; docs/internals/performance_log.md).
inline constexpr std::size_t kLongTileRows = 1152;
inline constexpr std::size_t kManyTiles = 32;

/// Keys in a step of the path for few rows. It bounds the scores of a step to 16 KB of double (8 of
/// float), which stay in the first-level cache until the values are multiplied by them.
inline constexpr std::size_t kFewKeys = 256;
inline constexpr std::size_t kMaxFewRows = 8;

/// Number of rows that are split into tiles together: those of a head or, if a head has few, those
/// of a group of heads. Row r of a group is query r % queries of the group's head r / queries, so
/// that its rows are contiguous in memory.
std::size_t AttentionSpan(const AttentionProblem& problem);

/// Rows in a tile of this problem.
std::size_t AttentionTileRows(const AttentionProblem& problem);

/// Rows for which an item has scratch memory: kTileRows or kLongTileRows.
std::size_t AttentionScratchRows(const AttentionProblem& problem);

/// Scratch memory of one item, split into arrays. Every array starts at a multiple of 64 bytes.
template <typename W>
struct AttentionScratch {
  W* query;                 ///< panels of [head_dim, width]
  W* scores;                ///< [keys, width] of one panel
  W* bias;                  ///< like scores
  std::uint64_t* attends;   ///< [keys] a bit for each row of a panel, if the mask is bool
  W* output;                ///< panels of [value_dim, width]
  W* keys;                  ///< packed
  W* values;                ///< packed
  W* floats;                ///< the keys or values of a tile, if they are codes
  W* best;                  ///< [rows] largest score so far
  W* total;                 ///< [rows] sum of the exponentials so far
  W* rescale;               ///< [rows]
  std::size_t* mask_at;     ///< [rows] offset of a row's mask, in elements
  std::int64_t* first_key;  ///< [rows] a row attends to keys in [first_key, last_key)
  std::int64_t* last_key;
  std::size_t bytes;

  AttentionScratch(const AttentionProblem& a, void* memory)
      : AttentionScratch(a, memory, kTileKeys, kMaxPanelRows) {}

 protected:
  AttentionScratch(const AttentionProblem& a, void* memory, std::size_t tile_keys,
                   std::size_t panel_rows) {
    static_assert(kTileKeys % kPackRows == 0, "keys are packed in whole chunks");
    static_assert(kFewKeys * kMaxFewRows <= kTileKeys * kMaxPanelRows, "shared by both paths");
    const std::size_t head_dim =
        (a.head_dim == 0 ? 1 : (a.head_dim + kPackDepth - 1) / kPackDepth) * kPackDepth;
    const std::size_t value_dim = (a.value_dim + kAmxValueStep - 1) / kAmxValueStep * kAmxValueStep;
    const std::size_t rows = AttentionScratchRows(a);
    bytes = 0;
    auto* start = static_cast<char*>(memory);
    query = Take<W>(start, head_dim * rows);
    scores = Take<W>(start, tile_keys * panel_rows);
    bias = Take<W>(start, a.mask.kind == MaskKind::kNone ? 0 : tile_keys * panel_rows);
    attends = Take<std::uint64_t>(start, a.mask.kind == MaskKind::kBool ? tile_keys : 0);
    output = Take<W>(start, value_dim * rows);
    keys = Take<W>(start, tile_keys * head_dim);
    values = Take<W>(start, tile_keys * value_dim);
    const std::size_t dim = a.codes.bits == 0 ? 0 : head_dim > value_dim ? head_dim : value_dim;
    floats = Take<W>(start, tile_keys * dim);
    best = Take<W>(start, rows);
    total = Take<W>(start, rows);
    rescale = Take<W>(start, rows);
    mask_at = Take<std::size_t>(start, a.mask.kind == MaskKind::kNone ? 0 : rows);
    first_key = Take<std::int64_t>(start, rows);
    last_key = Take<std::int64_t>(start, rows);
  }

  template <typename E>
  E* Take(char* start, std::size_t count) {
    const std::size_t at = bytes;
    bytes += (count * sizeof(E) + 63) / 64 * 64;
    return start == nullptr ? nullptr : reinterpret_cast<E*>(start + at);
  }
};

/// Scratch memory for products of tile registers. Queries, keys and values are bfloat16.
struct AttentionAmxScratch : AttentionScratch<float> {
  float* other_scores;

  AttentionAmxScratch(const AttentionProblem& a, void* memory)
      : AttentionScratch<float>(a, memory, kAmxTileKeys, kAmxPanelRows) {
    static_assert(kAmxDepthStep / 2 <= kPackDepth, "pairs need no more memory than floats");
    static_assert(kTileRows % kAmxPanelRows == 0 && kLongTileRows % kAmxPanelRows == 0,
                  "whole panels");
    static_assert(kLongTileRows % kMaxPanelRows == 0, "whole panels of either width");
    auto* start = static_cast<char*>(memory);
    other_scores = Take<float>(start, kAmxTileKeys * kAmxPanelRows);
  }

  /// Two buffers of scores, which weights replace.
  float* Scores(std::size_t buffer) const { return buffer == 0 ? scores : other_scores; }
};

}  // namespace coreai
