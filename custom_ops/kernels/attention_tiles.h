#pragma once

#include <cstddef>

#include "kernels/attention.h"

namespace coreai {

/// Rows (queries of one group of heads) and keys in a tile. Rows lie in the lanes, so that softmax
/// needs no sums across lanes and neither keys nor values are transposed.
inline constexpr std::size_t kTileRows = 64;
inline constexpr std::size_t kTileKeys = 96;

/// Keys in a step of the path for few rows.
inline constexpr std::size_t kFewKeys = 256;
inline constexpr std::size_t kMaxFewRows = 8;

/// Scratch memory of one item, cut into its arrays. Every array starts at a multiple of 64 bytes.
template <typename W>
struct AttentionScratch {
  W* query;                 ///< panels of [head_dim, width]
  W* scores;                ///< [keys, width] of one panel
  W* bias;                  ///< like scores
  W* output;                ///< panels of [value_dim, width]
  W* keys;                  ///< [keys, head_dim], if the tensors are not in W
  W* values;                ///< [keys, value_dim], if the tensors are not in W
  W* best;                  ///< [rows] largest score so far
  W* total;                 ///< [rows] sum of the exponentials so far
  W* rescale;               ///< [rows]
  std::int64_t* first_key;  ///< [rows] a row attends to keys in [first_key, last_key)
  std::int64_t* last_key;
  std::size_t bytes;

  AttentionScratch(const AttentionProblem& a, void* memory, bool converts) {
    static_assert(kFewKeys * kMaxFewRows <= kTileKeys * kTileRows, "shared by both paths");
    bytes = 0;
    auto* start = static_cast<char*>(memory);
    query = Take<W>(start, a.head_dim * kTileRows);
    scores = Take<W>(start, kTileKeys * kTileRows);
    bias = Take<W>(start, a.mask.kind == MaskKind::kNone ? 0 : kTileKeys * kTileRows);
    output = Take<W>(start, a.value_dim * kTileRows);
    keys = Take<W>(start, converts ? kTileKeys * a.head_dim : 0);
    values = Take<W>(start, converts ? kTileKeys * a.value_dim : 0);
    best = Take<W>(start, kTileRows);
    total = Take<W>(start, kTileRows);
    rescale = Take<W>(start, kTileRows);
    first_key = Take<std::int64_t>(start, kTileRows);
    last_key = Take<std::int64_t>(start, kTileRows);
  }

 private:
  template <typename E>
  E* Take(char* start, std::size_t count) {
    const std::size_t at = bytes;
    bytes += (count * sizeof(E) + 63) / 64 * 64;
    return start == nullptr ? nullptr : reinterpret_cast<E*>(start + at);
  }
};

}  // namespace coreai
