#pragma once

#include <cstdint>
#include <vector>

#include "fuzz/fake_ort.h"

namespace coreai::fuzz {

/// A tensor of doubles, for references that need to be obvious and may be slow.
struct Array {
  std::vector<std::int64_t> shape;
  std::vector<double> data;
  bool present = false;

  std::int64_t size(std::size_t axis) const { return shape.at(axis); }
  std::size_t count(std::size_t axis) const { return static_cast<std::size_t>(shape.at(axis)); }
};

/// The numbers of a tensor of any of the types that kernels know; not present if there is none.
Array ReadArray(const OrtValue* value);

/// The shape that two shapes broadcast to, aligned from the right.
std::vector<std::int64_t> BroadcastShape(std::vector<std::int64_t> a, std::vector<std::int64_t> b);

/// `array` repeated, aligned from the right.
Array BroadcastTo(const Array& array, const std::vector<std::int64_t>& shape);

/// `array` with an axis replaced by the places that `indices` choose, as numpy.take.
Array Take(const Array& array, std::size_t axis, const Array& indices);

/// A number as an element type keeps it.
double Rounded(double number, ONNXTensorElementDataType type);

/// Whether a type is one of the four floating-point types.
bool IsFloating(ONNXTensorElementDataType type);

/// The share of the largest number of a result by which an element may differ.
double Tolerance(ONNXTensorElementDataType type);

}  // namespace coreai::fuzz
