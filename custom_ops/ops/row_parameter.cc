#include "ops/row_parameter.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "ops/convert.h"
#include "ort/op.h"

namespace coreai {

RowParameter::RowParameter(const Checker& check, const char* name, const TensorView& parameter,
                           const Shape& input, std::size_t first, DType dtype, bool force_wide) {
  if (!parameter) return;
  check.RequireFloating(name, parameter);
  const bool is_wide = parameter.type == OnnxType(WideDType(dtype));
  const bool is_own = parameter.type == OnnxType(dtype);
  const bool usable = is_wide || (is_own && !force_wide);
  // The usual case: all rows share one row of parameters.
  if (usable && parameter.shape.size() == input.size() - first &&
      std::equal(parameter.shape.begin(), parameter.shape.end(),
                 input.begin() + static_cast<std::ptrdiff_t>(first))) {
    data_ = static_cast<const char*>(parameter.data);
    wide_ = is_wide;
    return;
  }
  Shape aligned(input.size(), 1);
  bool fits = parameter.shape.size() <= input.size();
  if (fits) {
    std::copy(parameter.shape.rbegin(), parameter.shape.rend(), aligned.rbegin());
    for (std::size_t i = 0; i < input.size(); ++i) {
      fits = fits && (aligned[i] == 1 || aligned[i] == input[i]);
    }
  }
  if (!fits) {
    check.Fail(std::string("input ") + name + " of shape " + ToString(parameter.shape) +
               " does not broadcast to input of shape " + ToString(input));
  }
  // No row uses the parameters. If one size is 0, the others may be too large for a copy.
  if (std::find(input.begin(), input.end(), 0) != input.end()) return;
  const bool whole_rows =
      std::equal(aligned.begin() + static_cast<std::ptrdiff_t>(first), aligned.end(),
                 input.begin() + static_cast<std::ptrdiff_t>(first));
  if (whole_rows && usable) {
    data_ = static_cast<const char*>(parameter.data);
    wide_ = is_wide;
    row_bytes_ =
        ElementCount(input, first, input.size()) * SizeOf(wide_ ? WideDType(dtype) : dtype);
  } else {
    Expand(parameter, aligned, input, first, dtype);
  }

  run_ = 1;
  bool in_run = true;
  std::size_t stride = 1;
  for (std::size_t axis = first; axis-- > 0;) {
    const auto size = static_cast<std::size_t>(input[axis]);
    const bool moves = aligned[axis] != 1;
    sizes_.push_back(size);
    strides_.push_back(moves ? stride : 0);
    if (moves) stride *= size;
    in_run = in_run && !moves;
    if (in_run) run_ *= size;
  }
  if (in_run) run_ = static_cast<std::size_t>(-1);
  run_ = std::max<std::size_t>(run_, 1);
}

void RowParameter::Expand(const TensorView& parameter, const Shape& aligned, const Shape& input,
                          std::size_t first, DType dtype) {
  const bool is_double = WideDType(dtype) == DType::kFloat64;
  const std::size_t row_size = ElementCount(input, first, input.size());
  const std::size_t source_row = ElementCount(aligned, first, aligned.size());
  const std::size_t rows = ElementCount(aligned, 0, first);
  storage_.resize(std::max<std::size_t>(1, rows * row_size));
  auto* out = reinterpret_cast<char*>(storage_.data());
  data_ = out;
  wide_ = true;
  const std::size_t element = SizeOf(WideDType(dtype));
  row_bytes_ = row_size * element;
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < row_size; ++i) {
      // Index in the parameter's row of element i of an expanded row.
      std::size_t rest = i, position = 0, stride = 1;
      for (std::size_t axis = input.size(); axis-- > first;) {
        const auto size = static_cast<std::size_t>(input[axis]);
        if (aligned[axis] != 1) position += rest % size * stride;
        stride *= static_cast<std::size_t>(aligned[axis]);
        rest /= size;
      }
      const double value =
          ReadFloating(parameter.type, parameter.data, row * source_row + position);
      const auto narrow = static_cast<float>(value);
      std::memcpy(out + (row * row_size + i) * element,
                  is_double ? static_cast<const void*>(&value) : &narrow, element);
    }
  }
}

const void* RowParameter::Row(std::size_t row) const {
  std::size_t offset = 0;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    offset += row % sizes_[i] * strides_[i];
    row /= sizes_[i];
  }
  return data_ == nullptr ? nullptr : data_ + offset * row_bytes_;
}

RowParameterPair::RowParameterPair(const Checker& check, const char* first_name,
                                   const TensorView& first_parameter, const char* second_name,
                                   const TensorView& second_parameter, const Shape& input,
                                   std::size_t first_axis, DType dtype) {
  const bool mixed =
      first_parameter && second_parameter && first_parameter.type != second_parameter.type;
  first = RowParameter(check, first_name, first_parameter, input, first_axis, dtype, mixed);
  second = RowParameter(check, second_name, second_parameter, input, first_axis, dtype, mixed);
  if (!first.present() || !second.present() || first.wide() == second.wide()) return;
  // One was converted because it broadcasts within a row.
  if (first.wide()) {
    second = RowParameter(check, second_name, second_parameter, input, first_axis, dtype, true);
  } else {
    first = RowParameter(check, first_name, first_parameter, input, first_axis, dtype, true);
  }
}

std::size_t RowParameterPair::run() const {
  // Runs are products of trailing outer sizes, so the shorter one divides the longer one.
  return std::min(first.run(), second.run());
}

}  // namespace coreai
