#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/checks.h"

namespace coreai {

/// Indices into an axis. Throws OpError unless they are int32 or int64 and in [0, size).
std::vector<std::size_t> ReadIndices(const Checker& check, const char* name,
                                     const TensorView& indices, std::int64_t size);

/// A factor of gather_mm: matrices in memory, and the matrix for each index of the batch axes.
///
/// Matrices are not copied, unless indices select within matrices: then the selected rows or
/// columns are copied first.
class GatherOperand {
 public:
  /// `indices` may be absent. Throws OpError if their shape is invalid or one is out of range.
  GatherOperand(const Checker& check, const char* name, const TensorView& input,
                const char* indices_name, const TensorView& indices, std::int64_t batch_axes,
                DType dtype);

  /// "lhs of shape [4, 8]", followed by the shape after the indices are applied, if there are any.
  std::string Text() const;

  /// Shape after the indices are applied, of rank 2 or higher.
  const Shape& shape() const { return shape_; }
  std::size_t rows() const { return static_cast<std::size_t>(shape_[shape_.size() - 2]); }
  std::size_t columns() const { return static_cast<std::size_t>(shape_.back()); }

  /// Matrices [count, rows, columns], contiguous; none for an operand without elements.
  const void* data() const { return data_; }
  std::size_t count() const { return count_; }

  /// The matrix at a flat (row-major) index of the batch axes.
  std::size_t Matrix(std::size_t place) const { return places_.empty() ? place : places_[place]; }

 private:
  void Copy(const Shape& input, std::size_t axis, const std::vector<std::size_t>& chosen,
            std::size_t element_bytes);

  const char* name_;
  Shape given_;
  Shape shape_;
  const void* data_;
  std::size_t count_ = 0;
  std::vector<std::size_t> places_;  // empty: every batch index has its own matrix
  std::unique_ptr<char[]> storage_;
};

/// Shape that two shapes broadcast to, aligned from the right; empty and false if they do not.
bool BroadcastShapes(const Shape& a, const Shape& b, Shape* both);

/// For each flat index of `whole`, the flat index in `part`, which broadcasts to `whole`.
std::vector<std::size_t> PlacesIn(const Shape& part, const Shape& whole);

}  // namespace coreai
