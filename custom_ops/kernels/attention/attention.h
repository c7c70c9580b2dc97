#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"
#include "simd/target.h"

namespace coreai {

enum class MaskKind : std::uint8_t {
  kNone,
  kBool,  ///< bytes; nonzero: attend
  kOwn,   ///< added to the scores, in the op's type
  kWide,  ///< added to the scores, in the compute type
};

/// The memory layout of a mask; strides are in elements, 0 along broadcast axes.
struct AttentionMask {
  MaskKind kind = MaskKind::kNone;
  const void* data = nullptr;
  std::size_t batch_stride = 0;
  std::size_t head_stride = 0;
  std::size_t query_stride = 0;
  std::size_t key_stride = 0;
};

/// Where keys and values are if they are not contiguous: token i of a batch row is token i % (1 <<
/// shift) of block table[batch * stride + (i >> shift)] of a pool [blocks, 1 << shift, heads, dim].
struct AttentionBlocks {
  const std::int64_t* table = nullptr;  ///< null: keys and values are contiguous
  std::size_t stride = 0;               ///< blocks of a batch row in the table
  unsigned shift = 0;                   ///< at most 62
};

/// Keys and values as codes of a few bits, one scale in the kernel's type for each token and head:
/// value i of a token is (code i - 2^(bits - 1)) * scale. With 4 bits, byte i of a row of `dim`
/// values has code i in its lower and code i + dim / 2 in its upper half.
struct AttentionCodes {
  unsigned bits = 0;                    ///< 8 or 4; 0: keys and values are floating-point
  const std::uint8_t* key = nullptr;    ///< [batch, key_heads, keys, head_dim * bits / 8]
  const std::uint8_t* value = nullptr;  ///< [batch, value_heads, keys, value_dim * bits / 8]
  const void* key_scales = nullptr;     ///< [batch, key_heads, keys]
  const void* value_scales = nullptr;   ///< [batch, value_heads, keys]
};

/// Scaled dot-product attention over contiguous tensors of the kernel's type. Pointers need only
/// the alignment of their element; the output overlaps nothing. With `bshd`, the second and third
/// axes of query, key, value and output are swapped: all heads of a token are side by side.
struct AttentionProblem {
  const void* query;       ///< [batch, heads, queries, head_dim]
  const void* key;         ///< [batch, key_heads, keys, head_dim]; heads % key_heads == 0
  const void* value;       ///< [batch, value_heads, keys, value_dim]; heads % value_heads == 0
  AttentionBlocks blocks;  ///< where `key` and `value` are pools of blocks instead
  void* output;            ///< [batch, heads, queries, value_dim]
  std::size_t batch, heads, key_heads, value_heads, queries, keys, head_dim, value_dim;
  double scale;
  double softcap;  ///< 0: none
  /// Query q is at position q + offset. If there is no mask, `causal` restricts it to keys up to
  /// its position, `window` to keys at a distance below `window`.
  bool causal;
  std::int64_t window;  ///< 0: none
  std::int64_t offset;
  bool bshd;  ///< without blocks
  AttentionMask mask;
  const void* sinks;   ///< [heads] in the compute type, or null
  bool deterministic;  ///< rows are summed in the same order, whatever the numbers of rows and keys
  bool tile_registers;   ///< AttentionUsesTileRegisters() of the kernel: items may have more rows
  AttentionCodes codes;  ///< if it has bits: instead of `key` and `value`, which are null
};

/// Number of heads that share a key head and a value head; they are computed together.
std::size_t AttentionGroup(const AttentionProblem& problem);

/// Number of items: independent parts of the work, which may run in any order or concurrently.
std::size_t AttentionItems(const AttentionProblem& problem);

/// Bytes of scratch memory per item, aligned to 64. Linear in head_dim + value_dim and independent
/// of the numbers of queries and keys.
std::size_t AttentionScratchBytes(const AttentionProblem& problem, DType dtype);

/// Writes the rows of the output that belong to `item`. Statistics and sums are in float (double
/// for float64). The result is zero for a query that attends to no key.
///
/// Keys to which no query of a panel attends are skipped. Other masked keys have weight zero, so an
/// infinite or NaN *value* at such a key still makes the row NaN. In torch every masked infinite or
/// NaN value makes the row NaN.
using AttentionKernel = void (*)(const AttentionProblem& problem, std::size_t item, void* scratch);
AttentionKernel FindAttention(Target target, DType dtype);

/// The same for keys and values that are codes of 8 or 4 bits.
AttentionKernel FindAttentionNbits(Target target, DType dtype, unsigned bits);

/// Whether the kernel multiplies in tile registers (AMX).
bool AttentionUsesTileRegisters(Target target, DType dtype);

}  // namespace coreai
