#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/attention/rope.h"
#include "ops/checks.h"

namespace coreai {

/// A list of numbers in the compute type: float32, or float64 for float64.
class WideNumbers {
 public:
  WideNumbers() = default;
  WideNumbers(DType dtype, std::size_t count) : wide_(WideDType(dtype)), numbers_(count) {}

  std::size_t size() const { return numbers_.size(); }
  const void* At(std::size_t i) const;
  double operator[](std::size_t i) const;
  void Set(std::size_t i, double x);

 private:
  DType wide_ = DType::kFloat32;
  std::vector<double> numbers_;  // floats use the first half
};

/// Angular frequencies of a node without a frequency input, cached between runs.
class RopeFrequencies {
 public:
  RopeFrequencies(DType dtype, float base, float scale);

  /// base ** (-i / half) * scale for i below half.
  std::shared_ptr<const WideNumbers> Default(std::size_t half) const;

  /// The frequencies of an input, scaled. Throws OpError.
  std::shared_ptr<const WideNumbers> Given(const Checker& check, const TensorView& frequencies,
                                           std::size_t half) const;

 private:
  DType dtype_;
  float base_;
  float scale_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const WideNumbers> last_;  // guarded by mutex_
};

/// Sizes of an input of rope; a missing batch axis counts as 1.
struct RopeSizes {
  std::size_t batch, heads, rows, half;
};

/// Cosines and sines that are computed from positions.
class RopeComputedTable {
 public:
  /// Throws OpError if positions or offset do not match `input`, of rank 3 or 4.
  RopeComputedTable(const Checker& check, const TensorView& position_ids, const TensorView& offset,
                    const Shape& input, const RopeSizes& sizes,
                    std::shared_ptr<const WideNumbers> frequencies, DType dtype,
                    RopeAnglesKernel kernel);

  bool MovesAlongBatch() const { return batch_stride_ != 0; }
  bool MovesAlongHeads() const { return head_stride_ != 0; }

  /// Writes [count, half] cosines, then as many sines, in the compute type.
  void Fill(std::size_t batch, std::size_t head, std::size_t first_row, std::size_t count,
            void* out) const;

 private:
  void ReadPositions(const Checker& check, const TensorView& position_ids, const Shape& input);
  void ReadOffset(const Checker& check, const TensorView& offset, const Shape& input);
  void CheckMagnitude();

  RopeSizes sizes_;
  std::shared_ptr<const WideNumbers> frequencies_;
  DType dtype_;
  RopeAnglesKernel kernel_;
  WideNumbers positions_;
  std::size_t batch_stride_ = 0;  // in positions
  std::size_t head_stride_ = 0;
  bool beyond_kernel_ = false;  // some angle is too large for the kernel
};

}  // namespace coreai
