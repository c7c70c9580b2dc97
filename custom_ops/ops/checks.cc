#include "ops/checks.h"

#include "ops/convert.h"
#include "ort/op.h"

namespace coreai {

std::string ToString(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::size_t ElementCount(const Shape& shape, std::size_t first, std::size_t last) {
  std::size_t count = 1;
  for (std::size_t i = first; i < last; ++i) count *= static_cast<std::size_t>(shape[i]);
  return count;
}

void Checker::Fail(const std::string& what) const { throw OpError(op_ + ": " + what); }

void Checker::Require(const char* name, const TensorView& input, DType dtype) const {
  if (!input) Fail(std::string("input ") + name + " is missing");
  if (input.type != OnnxType(dtype)) {
    Fail(std::string("input ") + name + " is " + TypeName(input.type) + ", expected " +
         TypeName(OnnxType(dtype)));
  }
}

void Checker::RequireFloating(const char* name, const TensorView& input) const {
  if (input && !IsFloating(input.type)) {
    Fail(std::string("input ") + name + " is " + TypeName(input.type) +
         ", expected float, float16, bfloat16 or double");
  }
}

void Checker::RequireIndex(const char* name, const TensorView& input) const {
  if (input && !IsIndex(input.type)) {
    Fail(std::string("input ") + name + " is " + TypeName(input.type) +
         ", expected int32 or int64");
  }
}

}  // namespace coreai
