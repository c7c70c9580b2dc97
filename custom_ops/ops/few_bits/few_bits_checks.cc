#include <cstdint>
#include <string>

#include "ops/convert.h"
#include "ops/few_bits/few_bits_inputs.h"
#include "ort/op.h"

namespace coreai {
namespace {

// Groups with one scale of the first level; more would be no block.
constexpr std::int64_t kLargestBlock = 1 << 20;

}  // namespace

void RequireShape(const Checker& check, const char* name, const TensorView& input,
                  const Shape& expected) {
  if (!input || input.shape == expected) return;
  check.Fail(std::string("input ") + name + " has shape " + ToString(input.shape) + ", expected " +
             ToString(expected));
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

}  // namespace coreai
