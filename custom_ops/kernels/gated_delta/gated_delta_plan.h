#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/gated_delta/gated_delta_update.h"

namespace coreai {

/// Maximum number of tokens in a chunk, on any target.
inline constexpr std::size_t kMaxChunk = 6;
/// Number of tokens that are prepared before the loop over the columns.
inline constexpr std::size_t kSegmentTokens = 192;
/// Columns per item: enough that preparing the tokens is comparatively cheap.
inline constexpr std::size_t kItemColumns = 128;
/// Keys and queries of a chunk are packed in blocks of this many elements.
inline constexpr std::size_t kPack = 16;
/// Widest block of columns, in bytes.
inline constexpr std::size_t kMaxBlockBytes = 256;

/// The couplings of the tokens of a chunk; i and j count from its first token, S is the state
/// before.
template <typename W>
struct ChunkCoefficients {
  W decay[kMaxChunk];  ///< of S until token i
  W beta[kMaxChunk];
  W beta_decay[kMaxChunk];         ///< beta[i] * decay[i]
  W left[kMaxChunk];               ///< decay of token i's addend until the end of the chunk
  W key[kMaxChunk * kMaxChunk];    ///< beta[i] * decay from j to i * key[i] . key[j], j < i
  W query[kMaxChunk * kMaxChunk];  ///< decay from j to i * query[i] . key[j], j <= i
};

/// Scratch memory of one item, split into arrays. Every array starts at a multiple of 64 bytes.
template <typename W>
struct GatedDeltaScratch {
  W* state;                         ///< blocks of [key_dim, columns]
  W* rows;                          ///< [2, padded key_dim], the key and query of a lone token
  W* tokens;                        ///< chunks of [key_dim / kPack, keys and queries, kPack]
  ChunkCoefficients<W>* couplings;  ///< of each chunk
  std::size_t padded;               ///< key_dim, rounded up to kPack
  std::size_t bytes;

  GatedDeltaScratch(const GatedDeltaProblem& a, void* memory) {
    bytes = 0;
    padded = (a.key_dim + kPack - 1) / kPack * kPack;
    auto* start = static_cast<char*>(memory);
    const std::size_t columns = std::min(a.value_dim, kItemColumns) + kMaxBlockBytes / sizeof(W);
    const bool chunks = a.length != 1;
    state = Take<W>(start, chunks ? a.key_dim * columns : 0);
    rows = Take<W>(start, chunks ? 0 : 2 * padded);
    // Chunks may be shorter than kMaxChunk, but are whole.
    tokens = Take<W>(start, chunks ? 2 * (kSegmentTokens + kMaxChunk) * padded : 0);
    couplings = Take<ChunkCoefficients<W>>(start, chunks ? kSegmentTokens : 0);
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
