#include "fuzz/array.h"

#include <cmath>
#include <cstring>
#include <utility>

namespace coreai::fuzz {
namespace {

template <typename E>
double At(const OrtValue& value, std::size_t i) {
  E element;
  std::memcpy(&element, value.memory.data() + value.shift + i * sizeof(E), sizeof(E));
  return static_cast<double>(element);
}

double HalfAt(const OrtValue& value, std::size_t i) {
  std::uint16_t bits;
  std::memcpy(&bits, value.memory.data() + value.shift + i * 2, 2);
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double magnitude =
      std::ldexp(exponent == 0 ? fraction : fraction + 1024, (exponent == 0 ? 1 : exponent) - 25);
  if (exponent == 31) magnitude = fraction == 0 ? HUGE_VAL : std::nan("");
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

double BFloatAt(const OrtValue& value, std::size_t i) {
  char bytes[4] = {};
  std::memcpy(bytes + 2, value.memory.data() + value.shift + i * 2, 2);  // little-endian
  float number;
  std::memcpy(&number, bytes, 4);
  return static_cast<double>(number);
}

double NumberAt(const OrtValue& value, std::size_t i) {
  switch (value.info.type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
      return At<double>(value, i);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return At<float>(value, i);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      return HalfAt(value, i);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      return BFloatAt(value, i);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
      return At<std::int64_t>(value, i);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
      return At<std::int32_t>(value, i);
    default:
      return At<std::uint8_t>(value, i);
  }
}

std::size_t Product(const std::vector<std::int64_t>& shape, std::size_t first, std::size_t last) {
  std::size_t product = 1;
  for (std::size_t i = first; i < last; ++i) product *= static_cast<std::size_t>(shape[i]);
  return product;
}

}  // namespace

Array ReadArray(const OrtValue* value) {
  Array array;
  if (value == nullptr) return array;
  array.present = true;
  array.shape = value->info.shape;
  array.data.resize((value->memory.size() - value->shift) / ElementBytes(value->info.type));
  for (std::size_t i = 0; i < array.data.size(); ++i) array.data[i] = NumberAt(*value, i);
  return array;
}

std::vector<std::int64_t> BroadcastShape(std::vector<std::int64_t> a, std::vector<std::int64_t> b) {
  if (a.size() < b.size()) std::swap(a, b);
  for (std::size_t i = 0; i < b.size(); ++i) {
    std::int64_t& size = a[a.size() - 1 - i];
    if (size == 1) size = b[b.size() - 1 - i];
  }
  return a;
}

Array BroadcastTo(const Array& array, const std::vector<std::int64_t>& shape) {
  Array whole{shape, std::vector<double>(Product(shape, 0, shape.size())), true};
  for (std::size_t i = 0; i < whole.data.size(); ++i) {
    std::size_t rest = i, place = 0, stride = 1;
    for (std::size_t axis = 0; axis < array.shape.size(); ++axis) {
      const auto own = static_cast<std::size_t>(array.shape[array.shape.size() - 1 - axis]);
      const auto size = static_cast<std::size_t>(shape[shape.size() - 1 - axis]);
      place += own == 1 ? 0 : rest % size * stride;
      rest /= size;
      stride *= own;
    }
    whole.data[i] = array.data[place];
  }
  return whole;
}

Array Take(const Array& array, std::size_t axis, const Array& indices) {
  Array taken = array;
  const auto place = taken.shape.begin() + static_cast<std::ptrdiff_t>(axis);
  taken.shape.insert(taken.shape.erase(place), indices.shape.begin(), indices.shape.end());
  taken.data.clear();
  const std::size_t outer = Product(array.shape, 0, axis);
  const std::size_t inner = Product(array.shape, axis + 1, array.shape.size());
  for (std::size_t o = 0; o < outer; ++o) {
    for (const double index : indices.data) {
      const std::size_t from = o * array.count(axis) + static_cast<std::size_t>(index);
      for (std::size_t i = 0; i < inner; ++i) taken.data.push_back(array.data[from * inner + i]);
    }
  }
  return taken;
}

double Rounded(double number, ONNXTensorElementDataType type) {
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE) return number;
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) {
    return static_cast<double>(static_cast<float>(number));
  }
  const bool half = type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
  int exponent = 0;
  std::frexp(number, &exponent);
  if (half && exponent < -13) exponent = -13;
  const int step = exponent - (half ? 11 : 8);
  return std::ldexp(std::nearbyint(std::ldexp(number, -step)), step);
}

bool IsFloating(ONNXTensorElementDataType type) {
  return type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT ||
         type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 ||
         type == ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16 ||
         type == ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE;
}

// Products are of numbers below 2 and at most a few hundred, so that rounding errors stay far
// below these shares of the largest number; a wrong index does not.
double Tolerance(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
      return 1e-6;  // attributes are float32
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return 1e-3;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      return 1e-2;
    default:
      return 5e-2;
  }
}

}  // namespace coreai::fuzz
