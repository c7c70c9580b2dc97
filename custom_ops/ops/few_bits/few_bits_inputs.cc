#include "ops/few_bits/few_bits_inputs.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernels/few_bits/pack.h"
#include "ops/convert.h"
#include "ort/op.h"

namespace coreai {

double ZeroPoint(const TensorView& zeros, std::size_t index) {
  if (zeros.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8) {
    return ReadFloating(zeros.type, zeros.data, index);
  }
  return static_cast<const std::uint8_t*>(zeros.data)[index];
}

void FewBitsInputs::Read(const std::function<TensorView(std::size_t)>& input,
                         std::size_t zero_points, std::size_t first_minimums) {
  codes = input(1);
  scales = input(2);
  zeros = input(zero_points);
  palette = input(zero_points + 1);
  minimums = input(first_minimums);
  scale_codes = input(first_minimums + 1);
  table = input(first_minimums + 2);
  layout = input(first_minimums + 3);
}

bool FewBitsInputs::IsComplete() const {
  if (!codes || !scales) return false;
  const auto bytes = static_cast<std::int64_t>(group * bits / 8);
  // Constant blocks may have a table that is not constant.
  return table ? layout.present : !codes.shape.empty() && codes.shape.back() == bytes;
}

BlockCodes FewBitsInputs::blocks() const {
  return {
      static_cast<const std::uint8_t*>(table.data),  static_cast<const std::int32_t*>(layout.data),
      static_cast<std::size_t>(table.shape[0]),      static_cast<std::size_t>(table.shape[1]),
      static_cast<std::size_t>(layout.shape[1] / 3), groups_of_row()};
}

bool FewBitsInputs::SameMemory(const FewBitsInputs& other) const {
  const auto same = [](const TensorView& a, const TensorView& b) {
    return a.data == b.data && a.present == b.present;
  };
  return same(codes, other.codes) && same(scales, other.scales) && same(zeros, other.zeros) &&
         same(palette, other.palette) && same(minimums, other.minimums) &&
         same(scale_codes, other.scale_codes) && same(table, other.table) &&
         same(layout, other.layout);
}

const std::uint8_t* FewBitsInputs::RowOf(std::size_t column, std::size_t g) const {
  const std::size_t rows = static_cast<std::size_t>(codes.shape[1]), at = g / groups_of_row();
  return static_cast<const std::uint8_t*>(codes.data) +
         (column * rows + at) * static_cast<std::size_t>(codes.shape[2]);
}

std::size_t FewBitsInputs::groups_of_block() const {
  if (!scale_codes) return groups_of_row();
  return groups() / std::max<std::size_t>(1, static_cast<std::size_t>(scale_codes.shape[1]));
}

FewBitsInputs::Levels FewBitsInputs::FactorsOf(std::size_t column, std::size_t g) const {
  const std::size_t of_block = groups_of_block(), place = g % of_block;
  if (table) return {static_cast<double>(blocks().Number(RowOf(column, g), place)), 1};
  if (!scale_codes) return {1, 1};
  const std::size_t at = (column * groups() + g) / of_block;
  const auto* const stream = static_cast<const std::uint8_t*>(scale_codes.data) +
                             at * static_cast<std::size_t>(scale_codes.shape[2]);
  const double scale = CodeAt(stream, place, scale_bits);
  if (!minimums) return {scale - static_cast<double>(1u << (scale_bits - 1)), 1};
  return {scale, static_cast<double>(CodeAt(stream, of_block + place, scale_bits))};
}

FewBitsInputs::Levels FewBitsInputs::LevelsOf(std::size_t column, std::size_t g) const {
  const auto [scale, minimum] = FactorsOf(column, g);
  const std::size_t at = (column * groups() + g) / groups_of_block();
  return {scale * ReadFloating(scales.type, scales.data, at),
          minimums ? minimum * ReadFloating(minimums.type, minimums.data, at) : 0};
}

std::size_t ElementBytes(ONNXTensorElementDataType type) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    if (OnnxType(dtype) == type) return SizeOf(dtype);
  }
  return 1;  // uint8
}

FewBitsInputs FewBitsInputs::Columns(std::size_t first, std::size_t count) const {
  FewBitsInputs part = *this;
  const auto cut = [&](TensorView& view) {
    if (!view) return;
    const std::size_t row = ElementCount(view.shape, 1, view.shape.size());
    view.data = static_cast<const char*>(view.data) + first * row * ElementBytes(view.type);
    view.shape[0] = static_cast<std::int64_t>(count);
  };
  cut(part.codes);
  for (const auto rows : kPartsOfRows) cut(part.*rows);
  return part;
}

double FewBitsInputs::Value(std::size_t column, std::size_t k) const {
  const std::size_t at = column * groups() + k / group;
  const std::uint8_t* const row = RowOf(column, k / group);
  const unsigned code = table ? blocks().Code(row, k % kBlockValues) : CodeAt(row, k % group, bits);
  const auto [scale, minimum] = LevelsOf(column, k / group);
  if (palette) return ReadFloating(palette.type, palette.data, code) * scale;
  return (code - (zeros ? ZeroPoint(zeros, at) : static_cast<double>(middle()))) * scale - minimum;
}

}  // namespace coreai
