#include "ops/gather_mm/gather_operand.h"

#include <cstring>
#include <string>

#include "ops/convert.h"

namespace coreai {

std::vector<std::size_t> ReadIndices(const Checker& check, const char* name,
                                     const TensorView& indices, std::int64_t size) {
  check.RequireIndex(name, indices);
  std::vector<std::size_t> chosen(ElementCount(indices.shape));
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const std::int64_t index = ReadIndex(indices.type, indices.data, i);
    if (index < 0 || index >= size) {
      check.Fail(std::string("element ") + std::to_string(i) + " of input " + name + " is " +
                 std::to_string(index) + ", expected 0 <= index < " + std::to_string(size));
    }
    chosen[i] = static_cast<std::size_t>(index);
  }
  return chosen;
}

GatherOperand::GatherOperand(const Checker& check, const char* name, const TensorView& input,
                             const char* indices_name, const TensorView& indices,
                             std::int64_t batch_axes, DType dtype)
    : name_(name), given_(input.shape), shape_(input.shape), data_(input.data) {
  check.Require(name, input, dtype);
  std::vector<std::size_t> chosen;
  const auto axis = static_cast<std::size_t>(batch_axes);
  if (indices) {
    if (batch_axes < 0 || axis >= input.shape.size()) {
      check.Fail("attribute num_batch_axes is " + std::to_string(batch_axes) + ", but input " +
                 name + " has shape " + ToString(input.shape));
    }
    chosen = ReadIndices(check, indices_name, indices, input.shape[axis]);
    const auto place = shape_.begin() + static_cast<std::ptrdiff_t>(axis);
    shape_.insert(shape_.erase(place), indices.shape.begin(), indices.shape.end());
  }
  if (shape_.size() < 2) {
    check.Fail(std::string("input ") + name + " of shape " + ToString(input.shape) +
               " must have rank 2 at least when its indices are taken, has shape " +
               ToString(shape_));
  }
  // No product reads the offsets, and there may be too many of them for memory.
  if (ElementCount(shape_) == 0) return;
  if (indices && axis + 2 >= input.shape.size()) {
    Copy(input.shape, axis, chosen, SizeOf(dtype));
    count_ = ElementCount(shape_, 0, shape_.size() - 2);
    return;
  }
  count_ = ElementCount(input.shape, 0, input.shape.size() - 2);
  if (!indices) return;
  const std::size_t outer = ElementCount(input.shape, 0, axis);
  const std::size_t inner = ElementCount(input.shape, axis + 1, input.shape.size() - 2);
  const auto size = static_cast<std::size_t>(input.shape[axis]);
  places_.reserve(outer * chosen.size() * inner);
  for (std::size_t i = 0; i < outer; ++i) {
    for (const std::size_t index : chosen) {
      for (std::size_t j = 0; j < inner; ++j) places_.push_back((i * size + index) * inner + j);
    }
  }
}

std::string GatherOperand::Text() const {
  const std::string text = name_ + (" of shape " + ToString(given_));
  return given_ == shape_ ? text : text + ", taken as " + ToString(shape_);
}

void GatherOperand::Copy(const Shape& input, std::size_t axis,
                         const std::vector<std::size_t>& chosen, std::size_t element_bytes) {
  const std::size_t outer = ElementCount(input, 0, axis);
  const auto size = static_cast<std::size_t>(input[axis]);
  const std::size_t run = ElementCount(input, axis + 1, input.size()) * element_bytes;
  storage_.reset(new char[outer * chosen.size() * run]);
  char* out = storage_.get();
  for (std::size_t i = 0; i < outer; ++i) {
    for (const std::size_t index : chosen) {
      std::memcpy(out, static_cast<const char*>(data_) + (i * size + index) * run, run);
      out += run;
    }
  }
  data_ = storage_.get();
}

bool BroadcastShapes(const Shape& a, const Shape& b, Shape* both) {
  const Shape& longer = a.size() < b.size() ? b : a;
  const Shape& shorter = a.size() < b.size() ? a : b;
  *both = longer;
  for (std::size_t i = 0; i < shorter.size(); ++i) {
    std::int64_t& size = (*both)[longer.size() - 1 - i];
    const std::int64_t other = shorter[shorter.size() - 1 - i];
    if (size == 1) {
      size = other;
    } else if (other != 1 && other != size) {
      return false;
    }
  }
  return true;
}

std::vector<std::size_t> PlacesIn(const Shape& part, const Shape& whole) {
  std::vector<std::size_t> places = {0};
  std::size_t stride = 1, count = 1;
  places.reserve(ElementCount(whole));
  // From the last axis to the first: repeats the existing offsets, shifted by the axis's stride.
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const auto size = static_cast<std::size_t>(whole[whole.size() - 1 - i]);
    const bool moves = i < part.size() && part[part.size() - 1 - i] != 1;
    places.resize(count * size);
    for (std::size_t j = 1; j < size; ++j) {
      for (std::size_t k = 0; k < count; ++k) {
        places[j * count + k] = places[k] + (moves ? j * stride : 0);
      }
    }
    count *= size;
    if (moves) stride *= size;
  }
  return places;
}

}  // namespace coreai
