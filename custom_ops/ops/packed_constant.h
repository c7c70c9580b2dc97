#pragma once

#include "kernels/gather_mm.h"
#include "ops/item_pool.h"
#include "ort/kernel_context.h"

namespace coreai {

/// The matrices of a constant input, packed for gather_mm. They take as much memory again as the
/// input, which onnxruntime keeps, columns rounded up to 16; with COREAI_OPS_PACK_WEIGHTS=0 in the
/// environment when the session is made, nothing is kept.
class PackedConstant {
 public:
  PackedConstant() = default;
  /// `input` is [..., depth, columns], or [..., columns, depth] if `transposed`; not present if it
  /// is not constant. Nothing is kept then, or if its type or rank is not that of matrices.
  PackedConstant(const TensorView& input, bool transposed, DType dtype, Target target);

  /// The packed matrices if `data` is where those of the constant lie, else null.
  const void* Find(const void* data) const { return data == original_ ? packed_.get() : nullptr; }

 private:
  const void* original_ = nullptr;
  ScratchMemory packed_;
};

}  // namespace coreai
