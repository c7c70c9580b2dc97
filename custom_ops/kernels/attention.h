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
  kWide,  ///< added to the scores, in the type computed in
};

/// A mask as it lies in memory; strides are in elements, 0 along broadcast axes.
struct AttentionMask {
  MaskKind kind = MaskKind::kNone;
  const void* data = nullptr;
  std::size_t batch_stride = 0;
  std::size_t head_stride = 0;
  std::size_t query_stride = 0;
  std::size_t key_stride = 0;
};

/// Scaled dot-product attention over contiguous tensors of the kernel's type. Pointers need only
/// the alignment of their element; the output overlaps nothing.
struct AttentionProblem {
  const void* query;  ///< [batch, heads, queries, head_dim]
  const void* key;    ///< [batch, key_heads, keys, head_dim]; heads % key_heads == 0
  const void* value;  ///< [batch, value_heads, keys, value_dim]; heads % value_heads == 0
  void* output;       ///< [batch, heads, queries, value_dim]
  std::size_t batch, heads, key_heads, value_heads, queries, keys, head_dim, value_dim;
  double scale;
  double softcap;  ///< 0: none
  /// Query q is at position q + offset. With causal or window set, and no mask, it attends to keys
  /// up to its position, nearer than `window`, or both.
  bool causal;
  std::int64_t window;  ///< 0: none
  std::int64_t offset;
  AttentionMask mask;
  const void* sinks;  ///< [heads] in the type computed in, or null
};

/// Heads that read the same key head and the same value head; they are computed together.
std::size_t AttentionGroup(const AttentionProblem& problem);

/// Independent parts of the work, of which an item is one, in any order or at once.
std::size_t AttentionItems(const AttentionProblem& problem);

/// Bytes of scratch memory an item needs, aligned to 64. Linear in head_dim + value_dim and
/// independent of the numbers of queries and keys.
std::size_t AttentionScratchBytes(const AttentionProblem& problem, DType dtype);

/// Writes the rows of the output that belong to `item`. Statistics and sums are in float (double
/// for float64). A query that may attend to nothing gives zeros.
///
/// Keys that no query of a panel attends to are skipped. The others have weight zero for a query
/// that does not attend to them, so an infinite or NaN *value* there still makes its row NaN, as in
/// torch, whose rows are NaN wherever such a value is masked.
using AttentionKernel = void (*)(const AttentionProblem& problem, std::size_t item, void* scratch);
AttentionKernel FindAttention(Target target, DType dtype);

}  // namespace coreai
