#include "ops/few_bits/few_bits_inputs.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernels/few_bits/pack.h"
#include "ops/convert.h"
#include "ort/op.h"

namespace coreai {
namespace {

// Groups with one scale of the first level; more would be no block.
constexpr std::int64_t kLargestBlock = 1 << 20;

double ZeroPoint(const TensorView& zeros, std::size_t index) {
  if (zeros.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8) {
    return ReadFloating(zeros.type, zeros.data, index);
  }
  return static_cast<const std::uint8_t*>(zeros.data)[index];
}

}  // namespace

void RequireShape(const Checker& check, const char* name, const TensorView& input,
                  const Shape& expected) {
  if (!input || input.shape == expected) return;
  check.Fail(std::string("input ") + name + " has shape " + ToString(input.shape) + ", expected " +
             ToString(expected));
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

void FewBitsInputs::Check(const Checker& check) const {
  if (!codes) check.Fail("input codes is missing");
  if (!scales) check.Fail("input scales is missing");
  if (codes.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8) {
    check.Fail(std::string("input codes is ") + TypeName(codes.type) + ", expected uint8");
  }
  if (table || layout) {
    CheckBlocks(check);
  } else if (codes.shape.size() != 3 ||
             codes.shape[2] != static_cast<std::int64_t>(group * bits / 8)) {
    check.Fail("input codes has shape " + ToString(codes.shape) + ", expected [N, groups, " +
               std::to_string(group * bits / 8) + "]");
  }
  check.RequireFloating("scales", scales);
  check.RequireFloating("palette", palette);
  if (zeros && zeros.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8) {
    check.RequireFloating("zero_points", zeros);
  }
  check.RequireFloating("minimums", minimums);
  CheckPresence(check);
  CheckScales(check);
  RequireShape(check, "palette", palette, {static_cast<std::int64_t>(1) << bits});
  if (zeros && palette) {
    check.Fail("input palette of shape " + ToString(palette.shape) + " excludes input zero_points");
  }
}

void FewBitsInputs::CheckBlocks(const Checker& check) const {
  if (!table || !layout) {
    check.Fail(std::string("input ") + (table ? "layout" : "table") + " is missing");
  }
  if (codes.shape.size() != 3) {
    check.Fail("input codes has shape " + ToString(codes.shape) + ", expected [N, blocks, bytes]");
  }
  if (table.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 ||
      layout.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32) {
    check.Fail(std::string("inputs table and layout are ") + TypeName(table.type) + " and " +
               TypeName(layout.type) + ", expected uint8 and int32");
  }
  const auto values = static_cast<std::int64_t>(kBlockValues);
  const std::int64_t width = table.shape.size() == 2 ? table.shape[1] : 0;
  if (width < 1 || values % width != 0 || kBlockValues % group != 0) {
    check.Fail("input table has shape " + ToString(table.shape) +
               ", expected [rows, width]; width and group_size, " + std::to_string(group) +
               ", must divide " + std::to_string(values));
  }
  const auto numbers = static_cast<std::int64_t>(groups_of_row()) + 2 * (values / width);
  if (layout.shape.size() != 2 || layout.shape[0] != numbers || layout.shape[1] < 4 ||
      layout.shape[1] % 3 != 1) {
    check.Fail("input layout has shape " + ToString(layout.shape) + ", expected [" +
               std::to_string(numbers) + ", 1 + 3 * fields]");
  }
  const std::string fault = blocks().Fault(static_cast<std::size_t>(codes.shape[2]), bits);
  if (!fault.empty()) {
    check.Fail("inputs table of shape " + ToString(table.shape) + " and layout of shape " +
               ToString(layout.shape) + ": " + fault);
  }
}

BlockCodes FewBitsInputs::blocks() const {
  return {
      static_cast<const std::uint8_t*>(table.data),  static_cast<const std::int32_t*>(layout.data),
      static_cast<std::size_t>(table.shape[0]),      static_cast<std::size_t>(table.shape[1]),
      static_cast<std::size_t>(layout.shape[1] / 3), groups_of_row()};
}

void FewBitsInputs::CheckPresence(const Checker& check) const {
  if (table && (!palette || zeros || minimums || scale_codes)) {
    check.Fail("input table of shape " + ToString(table.shape) +
               " needs input palette and excludes zero_points, minimums and scale_codes");
  }
  if (scale_codes.present != (scale_bits != 0)) {
    check.Fail("attribute scale_bits is " + std::to_string(scale_bits) +
               ", but input scale_codes " +
               (scale_codes ? "has shape " + ToString(scale_codes.shape) : "is missing"));
  }
  if (minimums && (zeros || palette)) {
    check.Fail("input minimums of shape " + ToString(minimums.shape) +
               " excludes inputs zero_points and palette");
  }
  if (scale_codes && zeros) {
    check.Fail("input scale_codes of shape " + ToString(scale_codes.shape) +
               " excludes input zero_points");
  }
}

void FewBitsInputs::CheckScales(const Checker& check) const {
  Shape of_groups(codes.shape.begin(), codes.shape.begin() + 2);
  RequireShape(check, "zero_points", zeros, of_groups);
  if (scale_codes) {
    if (scale_codes.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8) {
      check.Fail(std::string("input scale_codes is ") + TypeName(scale_codes.type) +
                 ", expected uint8");
    }
    const Shape& shape = scale_codes.shape;
    const std::int64_t groups = of_groups[1], blocks = shape.size() == 3 ? shape[1] : 0;
    const auto bits_of_group = static_cast<std::int64_t>(scale_bits * (minimums ? 2 : 1));
    // Divisions, because products of sizes beside a 0 may overflow.
    const bool fits = blocks > 0 ? groups % blocks == 0 && groups / blocks <= kLargestBlock &&
                                       shape[2] <= kLargestBlock &&
                                       groups / blocks * bits_of_group == shape[2] * 8
                                 : groups == 0;
    if (shape.size() != 3 || shape[0] != of_groups[0] || !fits) {
      check.Fail("attribute scale_bits is " + std::to_string(scale_bits) +
                 ": input scale_codes has shape " + ToString(shape) + " for " +
                 ToString(of_groups) + " groups");
    }
    of_groups[1] = blocks;
  }
  RequireShape(check, "scales", scales, of_groups);
  RequireShape(check, "minimums", minimums, of_groups);
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

FewBitsInputs::Levels FewBitsInputs::LevelsOf(std::size_t column, std::size_t g) const {
  std::size_t at = column * groups() + g;
  double scale = 1, minimum = 1;
  if (table) {
    const std::size_t of_block = groups_of_row();
    at /= of_block;
    scale = static_cast<double>(blocks().Number(RowOf(column, g), g % of_block));
  }
  if (scale_codes) {
    const auto blocks = static_cast<std::size_t>(scale_codes.shape[1]);
    const std::size_t of_block = groups() / blocks, bytes = scale_codes.shape[2];
    at = column * blocks + g / of_block;
    const auto* const stream = static_cast<const std::uint8_t*>(scale_codes.data) + at * bytes;
    scale = CodeAt(stream, g % of_block, scale_bits);
    if (minimums) {
      minimum = CodeAt(stream, of_block + g % of_block, scale_bits);
    } else {
      scale -= static_cast<double>(1u << (scale_bits - 1));
    }
  }
  scale *= ReadFloating(scales.type, scales.data, at);
  return {scale, minimums ? minimum * ReadFloating(minimums.type, minimums.data, at) : 0};
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
