#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/checks.h"

namespace coreai {

/// A factor of gather_mm: matrices in memory, and which of them each place of the batch axes means.
///
/// Matrices are used where they lie, unless indices choose within matrices: then the chosen rows or
/// columns are copied first.
class GatherOperand {
 public:
  /// `indices` may be absent. Throws OpError if they do not fit, or if one is out of range.
  GatherOperand(const Checker& check, const char* name, const TensorView& input,
                const char* indices_name, const TensorView& indices, std::int64_t batch_axes,
                DType dtype);

  /// "lhs of shape [4, 8]", and what it becomes where indices are taken.
  std::string Text() const;

  /// Shape after the indices are taken, of rank 2 at least.
  const Shape& shape() const { return shape_; }
  std::size_t rows() const { return static_cast<std::size_t>(shape_[shape_.size() - 2]); }
  std::size_t columns() const { return static_cast<std::size_t>(shape_.back()); }

  /// Matrices [count, rows, columns], contiguous; of an operand without elements there are none.
  const void* data() const { return data_; }
  std::size_t count() const { return count_; }

  /// The matrix at a place of the batch axes, counted in the order of memory.
  std::size_t Matrix(std::size_t place) const { return places_.empty() ? place : places_[place]; }

 private:
  void Copy(const Shape& input, std::size_t axis, const std::vector<std::size_t>& chosen,
            std::size_t element_bytes);

  const char* name_;
  Shape given_;
  Shape shape_;
  const void* data_;
  std::size_t count_ = 0;
  std::vector<std::size_t> places_;  // empty: every place has its own matrix
  std::unique_ptr<char[]> storage_;
};

/// Shape that two shapes broadcast to, aligned from the right; empty and false if they do not.
bool BroadcastShapes(const Shape& a, const Shape& b, Shape* both);

/// For each place of `whole`, in the order of memory, its place in `part`, which broadcasts to it.
std::vector<std::size_t> PlacesIn(const Shape& part, const Shape& whole);

}  // namespace coreai
