#pragma once

#include "kernels/gather_mm/gather_mm.h"
#include "memory/packed_file.h"
#include "ort/kernel_context.h"
#include "ort/kernel_info.h"

namespace coreai {

/// The matrices of a constant input, packed for gather_mm. They need as much memory as the input,
/// with columns rounded up to 16. onnxruntime keeps the input too, but what is mapped from a file
/// does not stay in memory. If COREAI_OPS_PACK_WEIGHTS=0 is in
/// the environment when the session is created, nothing is packed.
class PackedConstant {
 public:
  PackedConstant() = default;
  /// `input` is [..., depth, columns], or [..., columns, depth] if `transposed`. Nothing is packed
  /// if it is absent (not constant), or if its type or rank is invalid.
  PackedConstant(const KernelInfo& info, const TensorView& input, bool transposed, DType dtype,
                 Target target);

  /// The packed matrices if `data` points to the constant's matrices, else null.
  const void* Find(const void* data) const { return data == original_ ? packed_.get() : nullptr; }

 private:
  const void* original_ = nullptr;
  PackedMemory packed_;
};

}  // namespace coreai
