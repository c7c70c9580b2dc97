#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include "kernels/norms/residual_add.h"
#include "ops/checks.h"
#include "ops/row_split.h"

namespace coreai {

/// Adds a residual connection and passes the sum to a norm while it is in the first-level cache.
/// The sum is written to its output, or, if that is unused, to the memory of the normalized rows.
class ResidualRows {
 public:
  /// Checks the inputs, which must have one shape, and allocates both outputs. Throws OpError.
  ResidualRows(const Checker& check, const KernelContext& context, DType dtype,
               ResidualAddKernel add, const TensorView& input, const TensorView& skip)
      : context_(context), dtype_(dtype), add_(add), input_(input), skip_(skip) {
    check.Require("input", input, dtype);
    check.Require("skip", skip, dtype);
    if (input.shape != skip.shape) {
      check.Fail("input skip of shape " + ToString(skip.shape) + " must have the shape " +
                 ToString(input.shape) + " of input");
    }
    output_ = static_cast<char*>(context.Output(0, input.shape));
    sum_ = static_cast<char*>(context.OptionalOutput(1, input.shape));
    if (sum_ == nullptr) sum_ = output_;
  }

  /// Calls `norm(sum, output, row, count)` for ranges that cover all rows. A row consists of the
  /// axes of the input from `first` on. No range crosses a multiple of `run`.
  template <class Norm>
  void Run(std::size_t first, std::size_t run, const Norm& norm) const {
    const Shape& shape = input_.shape;
    const std::size_t row_size = ElementCount(shape, first, shape.size());
    const std::size_t row_bytes = row_size * SizeOf(dtype_);
    if (row_size == 0) return;
    const std::size_t step = std::max<std::size_t>(1, kCachedElements / row_size);
    SplitRows(context_, ElementCount(shape, 0, first), row_size, run,
              [&](std::size_t row, std::size_t count) {
                for (const std::size_t last = row + count; row < last; row += step) {
                  const std::size_t rows = std::min(step, last - row);
                  const std::size_t offset = row * row_bytes;
                  add_(static_cast<const char*>(input_.data) + offset,
                       static_cast<const char*>(skip_.data) + offset, rows * row_size,
                       sum_ + offset);
                  norm(sum_ + offset, output_ + offset, row, rows);
                }
              });
  }

 private:
  // Elements that are added before they are normalized: sums of 8 KB, 16 of float64, which stay in
  // the first-level cache in between.
  static constexpr std::size_t kCachedElements = 2048;

  const KernelContext& context_;
  DType dtype_;
  ResidualAddKernel add_;
  const TensorView& input_;
  const TensorView& skip_;
  char* output_;
  char* sum_;
};

}  // namespace coreai
