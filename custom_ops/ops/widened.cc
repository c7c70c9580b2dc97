#include "ops/widened.h"

#include <algorithm>
#include <cstring>

#include "ops/checks.h"
#include "ops/convert.h"
#include "ort/op.h"

namespace coreai {

Widened::Widened(const TensorView& tensor, DType dtype) : data_(tensor.data) {
  const DType wide = WideDType(dtype);
  if (tensor.type == OnnxType(wide)) return;
  const std::size_t count = ElementCount(tensor.shape);
  storage_.resize(std::max<std::size_t>(1, count));
  auto* bytes = reinterpret_cast<char*>(storage_.data());
  for (std::size_t i = 0; i < count; ++i) {
    const double value = ReadFloating(tensor.type, tensor.data, i);
    const auto narrow = static_cast<float>(value);
    if (wide == DType::kFloat64) {
      std::memcpy(bytes + i * sizeof(value), &value, sizeof(value));
    } else {
      std::memcpy(bytes + i * sizeof(narrow), &narrow, sizeof(narrow));
    }
  }
  data_ = bytes;
}

}  // namespace coreai
