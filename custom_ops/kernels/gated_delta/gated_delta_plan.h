#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/gated_delta/gated_delta_update.h"

namespace coreai {

/// Maximum number of tokens in a chunk, on any target.
inline constexpr std::size_t kMaxChunk = 6;
/// Number of tokens that are prepared before the loop over the columns, a multiple of every chunk.
/// It bounds the scratch memory: 0.5 MB for 128 × 128 states at any length.
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

/// Scratch memory that is split into arrays. Every array starts at a multiple of 64 bytes.
class GatedDeltaArrays {
 public:
  std::size_t bytes = 0;

 protected:
  template <typename E>
  E* Take(void* start, std::size_t count) {
    const std::size_t at = bytes;
    bytes += (count * sizeof(E) + 63) / 64 * 64;
    return start == nullptr ? nullptr : reinterpret_cast<E*>(static_cast<char*>(start) + at);
  }
};

/// Scratch memory of one item.
template <typename W>
struct GatedDeltaScratch : GatedDeltaArrays {
  W* state;                         ///< blocks of [key_dim, columns]
  W* rows;                          ///< [2, padded key_dim], the key and query of a lone token
  W* tokens;                        ///< chunks of [key_dim / kPack, keys and queries, kPack]
  ChunkCoefficients<W>* couplings;  ///< of each chunk
  std::size_t padded;               ///< key_dim, rounded up to kPack

  GatedDeltaScratch(const GatedDeltaProblem& a, void* start) {
    padded = (a.key_dim + kPack - 1) / kPack * kPack;
    const std::size_t columns = std::min(a.value_dim, kItemColumns) + kMaxBlockBytes / sizeof(W);
    const bool chunks = a.length != 1 && !a.steps;
    state = Take<W>(start, chunks ? a.key_dim * columns : 0);
    rows = Take<W>(start, chunks ? 0 : 2 * padded);
    // Chunks may be shorter than kMaxChunk, but are whole.
    tokens = Take<W>(start, chunks ? 2 * (kSegmentTokens + kMaxChunk) * padded : 0);
    couplings = Take<ChunkCoefficients<W>>(start, chunks ? kSegmentTokens : 0);
  }
};

/// Tokens in a chunk, and columns in a block of the state, where products are those of tile
/// registers (AMX): the depth of a product, and the columns of a tile. kTileBlocks blocks stay in
/// the first-level cache for all chunks of a segment, which gained 12 % over all columns for each
/// chunk (heads of 128 × 128, 2026-11; docs/internals/performance_log.md).
inline constexpr std::size_t kTileTokens = 32;
inline constexpr std::size_t kTileColumns = 16;
inline constexpr std::size_t kTileBlocks = 2;
inline constexpr std::size_t kTileChunks = kSegmentTokens / kTileTokens;
/// A float32 is the sum of this many bfloat16.
inline constexpr std::size_t kFloatParts = 3;
/// With fewer tokens than this, products of whole tiles take longer than multiply-adds.
inline constexpr std::size_t kMinTileTokens = 24;

/// The couplings of the tokens of a chunk that is multiplied in tiles; S is the state before.
struct alignas(64) TileCoefficients {
  /// As in ChunkCoefficients: those of keys and, times the scales of queries, those of queries.
  float tokens[2 * kTileTokens * kTileTokens];
  float beta[kTileTokens];
  float known[kTileTokens];  ///< beta[i] * decay of S until token i * scale of key[i]
  float seen[kTileTokens];   ///< decay of S until token i * scale of query[i]
  float write[kTileTokens];  ///< decay of token i's addend until the end * scale of key[i]
  float decay;               ///< of S until the end of the chunk

  const float* Keys() const { return tokens; }
  const float* Queries() const { return tokens + kTileTokens * kTileTokens; }
};

/// Scratch memory of one item whose products are those of tile registers. Tiles are 256 words. Keys
/// and queries are `key_parts` sums of bfloat16.
struct GatedDeltaTileScratch : GatedDeltaArrays {
  std::size_t padded;     ///< key_dim, rounded up to the depth of a tile
  float* state;           ///< blocks of [padded, kTileColumns]
  std::uint32_t* words;   ///< [part, 2, padded / 32] tiles: those of keys, transposed
  std::uint32_t* tokens;  ///< of each chunk [part, 4, padded / 32] tiles: of 32 keys, of 32 queries
  std::uint32_t* columns;  ///< of each chunk [part, padded / 16] tiles of 16 elements of all keys
  TileCoefficients* couplings;  ///< of each chunk
  std::uint32_t* parts;         ///< [2, kFloatParts] tiles of a block of the state
  std::uint32_t* writes;        ///< of each block [kFloatParts] tiles of the addends to it
  float* sums;                  ///< of each block [2, kTileTokens, kTileColumns]: keys, queries
  float* addends;               ///< of each block [kTileTokens, kTileColumns]
  void* outputs;                ///< [kTileTokens, kTileBlocks, kTileColumns] in the problem's type

  GatedDeltaTileScratch(const GatedDeltaProblem& a, std::size_t key_parts, void* start) {
    constexpr std::size_t kDepth = 32, kWords = 256;
    padded = (a.key_dim + kDepth - 1) / kDepth * kDepth;
    const std::size_t blocks =
        (std::min(a.value_dim, kItemColumns) + kTileColumns - 1) / kTileColumns;
    const std::size_t tiles = key_parts * (padded / kDepth) * kWords;
    state = Take<float>(start, blocks * padded * kTileColumns);
    words = Take<std::uint32_t>(start, 2 * tiles);
    tokens = Take<std::uint32_t>(start, kTileChunks * 4 * tiles);
    columns = Take<std::uint32_t>(start, kTileChunks * 2 * tiles);
    couplings = Take<TileCoefficients>(start, kTileChunks);
    parts = Take<std::uint32_t>(start, 2 * kFloatParts * kWords);
    writes = Take<std::uint32_t>(start, kTileBlocks * kFloatParts * kWords);
    sums = Take<float>(start, kTileBlocks * 2 * kTileTokens * kTileColumns);
    addends = Take<float>(start, kTileBlocks * kTileTokens * kTileColumns);
    outputs = Take<float>(start, kTileTokens * kTileBlocks * kTileColumns);
  }
};

/// Number of bfloat16 whose sum is a number of the type, of 16 bits.
constexpr std::size_t PartsOf(DType dtype) { return dtype == DType::kFloat16 ? 2 : 1; }

}  // namespace coreai
