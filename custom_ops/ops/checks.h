#pragma once

#include <cstddef>
#include <string>

#include "kernels/dtype.h"
#include "ort/kernel_context.h"
#include "ort/kernel_info.h"

namespace coreai {

/// "[2, 3]".
std::string ToString(const Shape& shape);

/// Product of the sizes in [first, last). onnxruntime has checked that the whole product fits.
std::size_t ElementCount(const Shape& shape, std::size_t first, std::size_t last);
inline std::size_t ElementCount(const Shape& shape) { return ElementCount(shape, 0, shape.size()); }

/// Checks of one op. Every error message begins with the name of the op.
class Checker {
 public:
  explicit Checker(const char* op) : op_(op) {}

  [[noreturn]] void Fail(const std::string& what) const;

  /// Throws unless the input is present and has the op's type.
  void Require(const char* name, const TensorView& input, DType dtype) const;

  /// Throws if the input is present and is not of one of the four floating-point types.
  void RequireFloating(const char* name, const TensorView& input) const;

  /// Throws if the input is present and is not int32 or int64.
  void RequireIndex(const char* name, const TensorView& input) const;

 private:
  std::string op_;
};

}  // namespace coreai
