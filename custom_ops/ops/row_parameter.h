#pragma once

#include <cstddef>
#include <vector>

#include "kernels/dtype.h"
#include "ops/checks.h"

namespace coreai {

/// A scale or bias of a norm, broadcast to its input from the right, as one contiguous row of
/// parameters per row of the input.
///
/// A parameter that already has this layout (the usual case) is not copied. One that broadcasts
/// within a row, or has another element type, is copied once, in the compute type.
class RowParameter {
 public:
  RowParameter() = default;

  /// `first` is the first normalized axis of `input`. `force_wide`: copy the parameter in the
  /// compute type even if it has the op's type. Throws OpError if it does not broadcast.
  RowParameter(const Checker& check, const char* name, const TensorView& parameter,
               const Shape& input, std::size_t first, DType dtype, bool force_wide);

  bool present() const { return data_ != nullptr; }
  /// Whether its elements have the compute type (true also if that is the op's type).
  bool wide() const { return wide_; }

  /// The parameters of input row `row`; null if there are none.
  const void* Row(std::size_t row) const;

  /// How many rows, from a multiple of it on, have the same parameters.
  std::size_t run() const { return run_; }

  /// Whether the parameters differ along an outer axis, counted from the last outer axis.
  bool Moves(std::size_t axis) const { return axis < strides_.size() && strides_[axis] != 0; }

 private:
  void Expand(const TensorView& parameter, const Shape& aligned, const Shape& input,
              std::size_t first, DType dtype);

  const char* data_ = nullptr;
  bool wide_ = true;
  std::size_t row_bytes_ = 0;
  std::size_t run_ = static_cast<std::size_t>(-1);
  // Sizes and strides (in parameter rows) of the outer axes, last axis first.
  std::vector<std::size_t> sizes_;
  std::vector<std::size_t> strides_;
  std::vector<double> storage_;  // doubles for their alignment
};

/// Two parameters of one input, each of which may be absent, in one element type: the op's type if
/// both have it, else the compute type.
struct RowParameterPair {
  RowParameterPair(const Checker& check, const char* first_name, const TensorView& first_parameter,
                   const char* second_name, const TensorView& second_parameter, const Shape& input,
                   std::size_t first_axis, DType dtype);

  bool wide() const { return first.present() ? first.wide() : second.wide(); }
  /// How many rows, from a multiple of it on, have the same parameters.
  std::size_t run() const;

  RowParameter first;
  RowParameter second;
};

}  // namespace coreai
