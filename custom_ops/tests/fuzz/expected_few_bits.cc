#include "fuzz/expected_few_bits.h"

#include <cmath>
#include <cstddef>
#include <utility>

#include "ops/schema.h"
#include "reference/linear_nbits.h"

namespace coreai::fuzz {
namespace {

// Part `index` of `count` equal parts.
std::vector<double> Part(const std::vector<double>& all, std::size_t index, std::size_t count) {
  const auto size = static_cast<std::ptrdiff_t>(all.size() / count);
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(index) * size;
  return {first, first + size};
}

std::vector<std::uint8_t> Bytes(const std::vector<double>& numbers) {
  std::vector<std::uint8_t> bytes;
  for (const double byte : numbers) bytes.push_back(static_cast<std::uint8_t>(byte));
  return bytes;
}

// The places of the optional parts in the inputs of an op.
struct Places {
  std::size_t zeros, palette, minimums, scale_codes, table, layout;
};

// One of `count` weights, whose codes are [..., columns, groups, bytes].
testing::FewBits WeightOf(const Call& call, const Places& places, std::size_t index,
                          std::size_t count) {
  const Array& codes = call.In(1);
  const Array& scales = call.In(2);
  const std::size_t rank = codes.shape.size();
  testing::FewBits weight;
  weight.bits = static_cast<std::size_t>(call.Int("bits", schema::linear_nbits::kBitsDefault));
  weight.group =
      static_cast<std::size_t>(call.Int("group_size", schema::linear_nbits::kGroupSizeDefault));
  weight.scale_bits =
      static_cast<std::size_t>(call.Int("scale_bits", schema::linear_nbits::kScaleBitsDefault));
  weight.columns = codes.count(rank - 3);
  weight.groups = codes.count(rank - 2);
  weight.blocks = scales.count(scales.shape.size() - 1);
  weight.stream = Bytes(Part(codes.data, index, count));
  weight.scales = Part(scales.data, index, count);
  weight.zeros = Part(call.In(places.zeros).data, index, count);
  weight.palette = call.In(places.palette).data;
  weight.minimums = Part(call.In(places.minimums).data, index, count);
  weight.scale_stream = Bytes(Part(call.In(places.scale_codes).data, index, count));
  const Array& table = call.In(places.table);
  const Array& layout = call.In(places.layout);
  if (!table.present) return weight;
  weight.table = Bytes(table.data);
  weight.width = table.count(1);
  weight.layout = layout.data;
  weight.fields = layout.count(1) / 3;
  weight.block_bytes = codes.count(rank - 1);
  weight.groups *= 256 / weight.group;
  return weight;
}

std::vector<double> Product(const Call& call, std::vector<double> x, std::size_t rows,
                            const testing::FewBits& weight) {
  const bool rounds = call.Int("activation_bits", 0) != 0;
  return call.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE
             ? testing::LinearNbitsReference<double>(std::move(x), rows, weight, rounds)
             : testing::LinearNbitsReference<float>(std::move(x), rows, weight, rounds);
}

}  // namespace

Arrays LinearNbits(const Call& call) {
  const Array& x = call.In(0);
  const testing::FewBits weight = WeightOf(call, {3, 4, 6, 7, 8, 9}, 0, 1);
  Array y;
  y.shape = x.shape;
  y.shape.back() = call.In(1).shape[0];
  std::size_t rows = 1;
  for (std::size_t axis = 0; axis + 1 < x.shape.size(); ++axis) rows *= x.count(axis);
  y.data = Product(call, x.data, rows, weight);
  if (call.In(5).present) {
    for (std::size_t i = 0; i < y.data.size(); ++i)
      y.data[i] += call.In(5).data[i % weight.columns];
  }
  return {y};
}

Arrays GatherMmNbits(const Call& call) {
  const Array &lhs = call.In(0), &codes = call.In(1), &indices = call.In(3);
  const Shape batch = BroadcastShape({lhs.shape.begin(), lhs.shape.end() - 2}, indices.shape);
  Shape left_shape = batch;
  left_shape.insert(left_shape.end(), lhs.shape.end() - 2, lhs.shape.end());
  const Array left = BroadcastTo(lhs, left_shape), chosen = BroadcastTo(indices, batch);
  Array y;
  y.shape = left_shape;
  y.shape.back() = codes.shape[1];
  for (std::size_t i = 0; i < chosen.data.size(); ++i) {
    const auto expert = static_cast<std::size_t>(chosen.data[i]);
    const auto product =
        Product(call, Part(left.data, i, chosen.data.size()), left.count(left.shape.size() - 2),
                WeightOf(call, {4, 5, 6, 7, 8, 9}, expert, codes.count(0)));
    y.data.insert(y.data.end(), product.begin(), product.end());
  }
  return {y};
}

Array Dequantized(const Array& codes, const Array& scales, std::int64_t bits) {
  Array values = codes;
  const std::size_t width = codes.count(3), dim = width * static_cast<std::size_t>(8 / bits);
  values.shape[3] = static_cast<std::int64_t>(dim);
  values.data.clear();
  for (std::size_t row = 0; row < scales.data.size(); ++row)
    for (std::size_t i = 0; i < dim; ++i) {
      const auto byte = static_cast<unsigned>(codes.data[row * width + i % width]);
      const unsigned code = bits == 8 ? byte : i < width ? byte & 15U : byte >> 4U;
      values.data.push_back((code - std::ldexp(1.0, static_cast<int>(bits) - 1)) *
                            scales.data[row]);
    }
  return values;
}

}  // namespace coreai::fuzz
