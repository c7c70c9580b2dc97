#pragma once

#include <vector>

#include "kernels/dtype.h"
#include "ort/kernel_context.h"

namespace coreai {

/// All elements of a tensor of any floating type, in the type that kernels of `dtype` compute in:
/// where they lie if they have it already, else in memory of this object's.
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
