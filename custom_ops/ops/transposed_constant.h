#pragma once

#include <memory>

#include "kernels/dtype.h"
#include "ort/kernel_context.h"

namespace coreai {

/// The matrices of a constant input, [..., rows, columns], once more as [..., columns, rows]. They
/// take as much memory again as the input, which onnxruntime keeps; with COREAI_OPS_PACK_WEIGHTS=0
/// in the environment when the session is made, nothing is kept.
class TransposedConstant {
 public:
  TransposedConstant() = default;
  /// `input` is not present if it is not constant; nothing is kept then, or below rank 2.
  TransposedConstant(const TensorView& input, DType dtype);

  /// The transposed matrices if `data` is where those of the constant lie, else null.
  const void* Find(const void* data) const {
    return data == original_ ? transposed_.get() : nullptr;
  }

 private:
  const void* original_ = nullptr;
  std::unique_ptr<char[]> transposed_;
};

}  // namespace coreai
