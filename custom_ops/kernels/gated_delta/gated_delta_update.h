#pragma once

#include <cstddef>

#include "kernels/dtype.h"
#include "simd/target.h"

namespace coreai {

/// Linear attention by the gated delta rule over contiguous tensors of the kernel's type. Pointers
/// need only the alignment of their element. Everything is computed in the wide type (float, or
/// double for float64) and rounded once.
struct GatedDeltaProblem {
  const void* query;          ///< [batch, heads, length, key_dim]
  const void* key;            ///< the same
  const void* value;          ///< [batch, value_heads, length, value_dim]; value_heads % heads == 0
  const void* log_decay;      ///< [batch, value_heads, length], in the wide type
  const void* beta;           ///< the same
  const void* initial_state;  ///< [batch, value_heads, key_dim, value_dim], or null: zeros
  void* output;               ///< [batch, length, value_heads, value_dim]
  void* state;                ///< like initial_state, and may be the same memory; null: unused
  std::size_t batch, heads, value_heads, length, key_dim, value_dim;
  bool wide_state;  ///< both states are in the wide type, else in the kernel's
  bool normalize;   ///< queries and keys are first divided by sqrt(sum(x²) + 1e-6)
  bool steps;       ///< token after token, rounding the state to its type; then `state` is not null
                    ///< unless there is one token
};

/// Number of items: independent parts of the work, which may run in any order or concurrently.
std::size_t GatedDeltaItems(const GatedDeltaProblem& problem);

/// Bytes of scratch memory per item, aligned to 64: a part of the state and a segment of tokens,
/// independent of the length.
std::size_t GatedDeltaScratchBytes(const GatedDeltaProblem& problem, DType dtype);

/// Computes one item: some columns of one value head's state, for all tokens. value_dim > 0.
using GatedDeltaKernel = void (*)(const GatedDeltaProblem& problem, std::size_t item,
                                  void* scratch);
GatedDeltaKernel FindGatedDelta(Target target, DType dtype);

}  // namespace coreai
