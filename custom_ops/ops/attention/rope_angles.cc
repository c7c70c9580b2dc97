#include "ops/attention/rope_angles.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "ops/convert.h"
#include "simd/sincos.h"

namespace coreai {

const void* WideNumbers::At(std::size_t i) const {
  return reinterpret_cast<const char*>(numbers_.data()) + i * SizeOf(wide_);
}

double WideNumbers::operator[](std::size_t i) const {
  return wide_ == DType::kFloat64
             ? numbers_[i]
             : static_cast<double>(reinterpret_cast<const float*>(numbers_.data())[i]);
}

void WideNumbers::Set(std::size_t i, double x) {
  if (wide_ == DType::kFloat64) {
    numbers_[i] = x;
  } else {
    reinterpret_cast<float*>(numbers_.data())[i] = static_cast<float>(x);
  }
}

RopeFrequencies::RopeFrequencies(DType dtype, float base, float scale)
    : dtype_(dtype), base_(base), scale_(scale) {}

std::shared_ptr<const WideNumbers> RopeFrequencies::Default(std::size_t half) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (last_ != nullptr && last_->size() == half) return last_;
  auto frequencies = std::make_shared<WideNumbers>(dtype_, half);
  for (std::size_t i = 0; i < half; ++i) {
    // Every step is rounded to the compute type, as in the definition.
    frequencies->Set(i, static_cast<double>(i) / static_cast<double>(half));
    frequencies->Set(i, std::pow(static_cast<double>(base_), (*frequencies)[i]));
    frequencies->Set(i, 1.0 / (*frequencies)[i]);
    frequencies->Set(i, (*frequencies)[i] * static_cast<double>(scale_));
  }
  last_ = frequencies;
  return frequencies;
}

std::shared_ptr<const WideNumbers> RopeFrequencies::Given(const Checker& check,
                                                          const TensorView& frequencies,
                                                          std::size_t half) const {
  check.RequireFloating("freqs", frequencies);
  const std::size_t count = ElementCount(frequencies.shape);
  if (frequencies.shape.size() > 1 || (count != half && count != 1)) {
    check.Fail("input freqs of shape " + ToString(frequencies.shape) + " must have shape [" +
               std::to_string(half) + "], half the rotated lanes");
  }
  auto scaled = std::make_shared<WideNumbers>(dtype_, half);
  for (std::size_t i = 0; i < half; ++i) {
    scaled->Set(i, ReadFloating(frequencies.type, frequencies.data, count == 1 ? 0 : i));
    scaled->Set(i, (*scaled)[i] * static_cast<double>(scale_));
  }
  return scaled;
}

RopeComputedTable::RopeComputedTable(const Checker& check, const TensorView& position_ids,
                                     const TensorView& offset, const Shape& input,
                                     const RopeSizes& sizes,
                                     std::shared_ptr<const WideNumbers> frequencies, DType dtype,
                                     RopeAnglesKernel kernel)
    : sizes_(sizes), frequencies_(std::move(frequencies)), dtype_(dtype), kernel_(kernel) {
  if (position_ids) {
    ReadPositions(check, position_ids, input);
  } else {
    ReadOffset(check, offset, input);
  }
  CheckMagnitude();
}

void RopeComputedTable::ReadPositions(const Checker& check, const TensorView& position_ids,
                                      const Shape& input) {
  check.RequireIndex("position_ids", position_ids);
  Shape shape = position_ids.shape;
  if (shape.size() == 2 && input.size() == 4) shape.insert(shape.begin() + 1, 1);
  Shape aligned(3, 1);
  bool fits = shape.size() < input.size();
  if (fits) std::copy(shape.rbegin(), shape.rend(), aligned.rbegin());
  const std::size_t sizes[] = {sizes_.batch, sizes_.heads, sizes_.rows};
  std::size_t strides[3], stride = 1;
  for (std::size_t axis = 3; axis-- > 0;) {
    const auto size = static_cast<std::size_t>(aligned[axis]);
    fits = fits && (size == 1 || size == sizes[axis]);
    strides[axis] = size == 1 ? 0 : stride;
    stride *= size;
  }
  if (!fits) {
    check.Fail("input position_ids of shape " + ToString(position_ids.shape) +
               " does not broadcast to [batch, length] of input of shape " + ToString(input));
  }
  const std::size_t outer = static_cast<std::size_t>(aligned[0] * aligned[1]);
  positions_ = WideNumbers(dtype_, outer * sizes_.rows);
  for (std::size_t i = 0; i < outer; ++i) {
    for (std::size_t row = 0; row < sizes_.rows; ++row) {
      const std::size_t source = i * static_cast<std::size_t>(aligned[2]) + row * strides[2];
      const std::int64_t position = ReadIndex(position_ids.type, position_ids.data, source);
      positions_.Set(i * sizes_.rows + row, static_cast<double>(position));
    }
  }
  head_stride_ = aligned[1] == 1 ? 0 : sizes_.rows;
  batch_stride_ = aligned[0] == 1 ? 0 : static_cast<std::size_t>(aligned[1]) * sizes_.rows;
}

void RopeComputedTable::ReadOffset(const Checker& check, const TensorView& offset,
                                   const Shape& input) {
  std::size_t count = 1;
  if (offset) {
    check.RequireIndex("offset", offset);
    count = ElementCount(offset.shape);
    // One offset per index of the first axis: the batch, or the heads if there is no batch.
    const auto outer = static_cast<std::size_t>(input[0]);
    const bool column = offset.shape.size() == 2 && offset.shape[1] == 1;
    if ((offset.shape.size() > 1 && !column) || (count != 1 && count != outer)) {
      check.Fail("input offset of shape " + ToString(offset.shape) +
                 " must have shape [], [1], [batch] or [batch, 1] for input of shape " +
                 ToString(input));
    }
  }
  positions_ = WideNumbers(dtype_, count * sizes_.rows);
  WideNumbers start(dtype_, 1);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t position = offset ? ReadIndex(offset.type, offset.data, i) : 0;
    start.Set(0, static_cast<double>(position));
    for (std::size_t row = 0; row < sizes_.rows; ++row) {
      positions_.Set(i * sizes_.rows + row, start[0] + static_cast<double>(row));
    }
  }
  (input.size() == 4 ? batch_stride_ : head_stride_) = count == 1 ? 0 : sizes_.rows;
}

void RopeComputedTable::CheckMagnitude() {
  double position = 0, frequency = 0;
  for (std::size_t i = 0; i < positions_.size(); ++i) {
    position = std::max(position, std::fabs(positions_[i]));
  }
  for (std::size_t i = 0; i < frequencies_->size(); ++i) {
    const double magnitude = std::fabs((*frequencies_)[i]);
    if (!(magnitude <= frequency)) frequency = magnitude;  // keeps NaN
    if (std::isnan(frequency)) break;
  }
  beyond_kernel_ = !(position * frequency < kMaxSinCosArgument);
}

void RopeComputedTable::Fill(std::size_t batch, std::size_t head, std::size_t first_row,
                             std::size_t count, void* out) const {
  const std::size_t half = sizes_.half;
  const std::size_t start = batch * batch_stride_ + head * head_stride_ + first_row;
  auto* const cos = static_cast<char*>(out);
  char* const sin = cos + count * half * SizeOf(WideDType(dtype_));
  if (!beyond_kernel_) {
    kernel_({positions_.At(start), frequencies_->At(0), cos, sin, count, half});
    return;
  }
  for (std::size_t row = 0; row < count; ++row) {
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = positions_[start + row] * (*frequencies_)[i];
      if (WideDType(dtype_) == DType::kFloat64) {
        reinterpret_cast<double*>(cos)[row * half + i] = std::cos(angle);
        reinterpret_cast<double*>(sin)[row * half + i] = std::sin(angle);
      } else {
        const auto rounded = static_cast<double>(static_cast<float>(angle));
        reinterpret_cast<float*>(cos)[row * half + i] = static_cast<float>(std::cos(rounded));
        reinterpret_cast<float*>(sin)[row * half + i] = static_cast<float>(std::sin(rounded));
      }
    }
  }
}

}  // namespace coreai
