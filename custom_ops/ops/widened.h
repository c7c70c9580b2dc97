#pragma once

#include <vector>

#include "kernels/dtype.h"
#include "ort/kernel_context.h"

namespace coreai {

/// All elements of a tensor of any floating-point type, in the compute type of kernels for `dtype`.
/// They are not copied if they already have that type, else this object owns a copy.
class Widened {
 public:
  Widened() = default;
  Widened(const TensorView& tensor, DType dtype);

  const void* data() const { return data_; }

 private:
  const void* data_ = nullptr;
  std::vector<double> storage_;  // doubles for their alignment
};

}  // namespace coreai
