#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/few_bits/pack.h"
#include "memory/file_pages.h"
#include "ops/convert.h"
#include "ops/few_bits/few_bits_inputs.h"
#include "ort/op.h"

namespace coreai {
namespace {

constexpr std::size_t kPaletteSize = 256;
// All integers of this magnitude are numbers of bfloat16.
constexpr float kLargestExact = 256;
// Codes in a mapped file that are in memory at a time while they are packed.
constexpr std::size_t kPieceBytes = std::size_t{8} << 20;
// Of the layout in a PackedFile: another layout gets another number.
constexpr std::size_t kLayoutVersion = 3;

/// Includes the codes less a zero point in the weight's limits.
void WidenLimits(float zero, std::size_t bits, FewBitsWeight* weight) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto largest = static_cast<float>((1u << bits) - 1);
  const bool is_integer = zero == std::nearbyint(zero);
  weight->least = is_integer ? std::min(weight->least, -zero) : -kInfinity;
  weight->most = is_integer ? std::max(weight->most, largest - zero) : kInfinity;
}

bool IsBFloat16(float x) {
  std::uint32_t word;
  std::memcpy(&word, &x, sizeof(word));
  return std::isfinite(x) && (word & 0xFFFF) == 0;
}

DType ScaleType(ONNXTensorElementDataType type) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    if (OnnxType(dtype) == type) return dtype;
  }
  return DType::kFloat32;
}

/// Whether scales and minimums of two levels are packed as they are: blocks are powers of two, and
/// the integers by which they are multiplied are bytes.
bool HasTwoLevels(const FewBitsInputs& inputs) {
  const std::size_t of_block = inputs.groups_of_block();
  const auto is_wide = [](const TensorView& view) {
    return view && view.type == OnnxType(DType::kFloat64);
  };
  if ((of_block & (of_block - 1)) != 0 || is_wide(inputs.scales) || is_wide(inputs.minimums)) {
    return false;
  }
  if (inputs.scale_codes) return inputs.scale_bits < 8 || !inputs.minimums;
  if (!inputs.table) return false;
  const BlockCodes blocks = inputs.blocks();
  for (std::size_t i = 0; i < blocks.groups; ++i) {
    const auto [least, most] = blocks.RangeOf(i);
    if (least < std::numeric_limits<std::int8_t>::min() ||
        most > std::numeric_limits<std::int8_t>::max()) {
      return false;
    }
  }
  return true;
}

/// Where the parts of a packed weight are in its memory, after the codes; each is aligned to 64.
struct PackedLayout {
  std::size_t scales, zeros, minimums, scale_factors, minimum_factors, size;
  bool two_levels;

  PackedLayout(const FewBitsWeight& weight, const FewBitsInputs& inputs)
      : two_levels(HasTwoLevels(inputs)) {
    const std::size_t strips = (inputs.columns() + kFewBitsStrip - 1) / kFewBitsStrip;
    const std::size_t count = strips * kFewBitsStrip * weight.groups;  // a multiple of 64
    const std::size_t levels = count >> weight.block_shift, factors = two_levels ? count : 0;
    scales = strips * weight.strip_bytes();
    zeros = scales + levels * SizeOf(weight.scale);
    minimums = zeros + (inputs.zeros ? count * sizeof(float) : 0);
    scale_factors = minimums + (inputs.minimums ? levels * SizeOf(weight.minimum) : 0);
    minimum_factors = scale_factors + factors;
    size = minimum_factors + (inputs.minimums ? factors : 0);
  }
};

std::size_t BytesOf(const TensorView& view) {
  return view ? ElementCount(view.shape) * ElementBytes(view.type) : 0;
}

std::size_t BytesOfColumn(const FewBitsInputs& inputs) {
  return ElementCount(inputs.codes.shape, 1, inputs.codes.shape.size());
}

/// Calls `body(codes, first, count)` for the codes of some columns after the other. With `release`,
/// their pages leave the memory in between.
template <class Body>
void ForPieces(const FewBitsInputs& inputs, bool release, const Body& body) {
  const auto* const codes = static_cast<const std::uint8_t*>(inputs.codes.data);
  const std::size_t of_column = BytesOfColumn(inputs);
  const std::size_t of_strip = std::max<std::size_t>(1, of_column * kFewBitsStrip);
  const std::size_t step = std::max<std::size_t>(1, kPieceBytes / of_strip) * kFewBitsStrip;
  for (std::size_t first = 0; first < inputs.columns(); first += step) {
    const std::size_t count = std::min(step, inputs.columns() - first);
    body(codes + first * of_column, first, count);
    if (release) ReleaseFilePages(codes + first * of_column, count * of_column);
  }
}

/// The key of a weight, whose packed layout is kLayoutVersion.
PackedKey KeyOf(const FewBitsInputs& inputs, PackedFile* file) {
  WeightSource source;
  for (const std::size_t number :
       {kLayoutVersion, inputs.bits, inputs.group, inputs.scale_bits, inputs.columns()}) {
    source.Add(number);
  }
  source.Add(inputs.codes.data, inputs.columns() * BytesOfColumn(inputs));
  if (inputs.table) {
    const BlockCodes blocks = inputs.blocks();
    source.Add(blocks.width);
    source.Add(blocks.fields);
    source.Add(blocks.table, BytesOf(inputs.table));
    source.Add(blocks.layout, ElementCount(inputs.layout.shape) * sizeof(*blocks.layout));
  }
  for (const auto part : kPartsOfRows) {
    const TensorView& view = inputs.*part;
    source.Add(static_cast<std::uint64_t>(view.type));
    source.Add(view.data, BytesOf(view));
  }
  return source.KeyIn(file);
}

/// Size of a code when it is packed: those of blocks are unpacked to as many bits before.
std::size_t BitsOfStream(const FewBitsInputs& inputs) {
  return !inputs.table ? inputs.bits : inputs.bits > 4 ? 8 : StoredBits(inputs.bits, inputs.group);
}

/// Unpacks and packs the codes in blocks of some columns, a strip at a time: beside the packed
/// weight, memory has the codes of 64 columns.
void PackBlocks(const FewBitsInputs& inputs, const FewBitsWeight& weight, std::uint8_t* packed) {
  const BlockCodes blocks = inputs.blocks();
  const std::size_t row = inputs.depth() * weight.bits / 8,
                    of_block = kBlockValues * weight.bits / 8;
  std::vector<std::uint8_t> strip(kFewBitsStrip * row);
  for (std::size_t first = 0; first < inputs.columns(); first += kFewBitsStrip) {
    const FewBitsInputs some =
        inputs.Columns(first, std::min(kFewBitsStrip, inputs.columns() - first));
    const auto* from = static_cast<const std::uint8_t*>(some.codes.data);
    for (std::size_t at = 0; at < some.columns() * row; at += of_block) {
      blocks.Unpack(from, weight.bits, strip.data() + at);
      from += inputs.codes.shape[2];
    }
    PackCodes(strip.data(), some.columns(), weight.groups, weight.group, weight.bits, weight.padded,
              packed + first / kFewBitsStrip * weight.strip_bytes());
  }
}

/// The index of a group's scale in packed memory.
std::size_t PlaceOf(std::size_t column, std::size_t g, std::size_t groups) {
  return (column / kFewBitsStrip * groups + g) * kFewBitsStrip + column % kFewBitsStrip;
}

/// Packs all but the codes of columns [first, end).
void PackScales(const FewBitsInputs& inputs, const FewBitsWeight& weight,
                const PackedLayout& layout, std::size_t first, std::size_t end, char* packed) {
  auto* const zeros = reinterpret_cast<float*>(packed + layout.zeros);
  auto* const scale_factors = reinterpret_cast<std::int8_t*>(packed + layout.scale_factors);
  auto* const minimum_factors = reinterpret_cast<std::int8_t*>(packed + layout.minimum_factors);
  const std::size_t of_block = std::size_t{1} << weight.block_shift;
  for (std::size_t c = first; c < end; ++c) {
    for (std::size_t g = 0; g < weight.groups; ++g) {
      const std::size_t from = c * weight.groups + g, to = PlaceOf(c, g, weight.groups);
      if (inputs.zeros) zeros[to] = static_cast<float>(ZeroPoint(inputs.zeros, from));
      if (layout.two_levels) {
        const auto [scale, minimum] = inputs.FactorsOf(c, g);
        scale_factors[to] = static_cast<std::int8_t>(scale);
        if (inputs.minimums) minimum_factors[to] = static_cast<std::int8_t>(minimum);
      }
      if (g % of_block != 0) continue;
      // The levels of all groups of the block, or those of the group.
      const std::size_t level = PlaceOf(c, g / of_block, weight.groups / of_block);
      const auto [scale, minimum] = inputs.LevelsOf(c, g);
      const auto pack = [&](const TensorView& view, DType type, double value, std::size_t place) {
        const std::size_t bytes = SizeOf(type);
        char* const at = packed + place + level * bytes;
        if (layout.two_levels || type != DType::kFloat32) {
          std::memcpy(at, static_cast<const char*>(view.data) + from / of_block * bytes, bytes);
        } else {
          const auto number = static_cast<float>(value);
          std::memcpy(at, &number, bytes);
        }
      };
      pack(inputs.scales, weight.scale, scale, layout.scales);
      if (inputs.minimums) pack(inputs.minimums, weight.minimum, minimum, layout.minimums);
    }
  }
}

/// Codes and scales of the same columns one after the other: blocks have both.
void PackAll(const FewBitsInputs& inputs, const FewBitsWeight& weight, const PackedLayout& layout,
             bool release, char* packed) {
  std::memset(packed + layout.scales, 0, layout.size - layout.scales);
  ForPieces(inputs, release, [&](const std::uint8_t* codes, std::size_t first, std::size_t count) {
    auto* const to =
        reinterpret_cast<std::uint8_t*>(packed) + first / kFewBitsStrip * weight.strip_bytes();
    if (inputs.table) {
      PackBlocks(inputs.Columns(first, count), weight, to);
    } else {
      PackCodes(codes, count, weight.groups, weight.group, inputs.bits, weight.padded, to);
    }
    PackScales(inputs, weight, layout, first, first + count, packed);
  });
}

/// Sets the limits of codes less zero points, which are packed.
void SetLimits(const FewBitsInputs& inputs, FewBitsWeight* weight) {
  weight->least = weight->most = 0;
  if (!inputs.zeros) return WidenLimits(weight->zero, inputs.bits, weight);
  for (std::size_t c = 0; c < inputs.columns(); ++c) {
    for (std::size_t g = 0; g < weight->groups; ++g) {
      WidenLimits(weight->zeros[PlaceOf(c, g, weight->groups)], inputs.bits, weight);
    }
  }
}

}  // namespace

PackedFewBits::PackedFewBits(const FewBitsInputs& inputs, std::shared_ptr<PackedFile> file,
                             bool is_constant) {
  weight_.bits = StoredBits(BitsOfStream(inputs), inputs.group);
  const std::size_t unit = UnitCodes(weight_.bits);
  weight_.groups = inputs.groups();
  weight_.group = inputs.group;
  weight_.padded = (inputs.group + unit - 1) / unit * unit;
  weight_.zero = static_cast<float>(inputs.middle());
  const bool two_levels = HasTwoLevels(inputs);
  // Products of two levels need more bits than float16 has.
  const bool is_product = (inputs.scale_codes || inputs.table) && !two_levels;
  weight_.scale = is_product ? DType::kFloat32 : ScaleType(inputs.scales.type);
  weight_.minimum = is_product ? DType::kFloat32 : ScaleType(inputs.minimums.type);
  while (two_levels && inputs.groups_of_block() >> weight_.block_shift > 1) ++weight_.block_shift;
  const PackedLayout layout(weight_, inputs);
  const PackedKey key = file == nullptr ? PackedKey{} : KeyOf(inputs, file.get());
  memory_ = PackedMemory(std::move(file), key, layout.size, [&](char* packed) {
    PackAll(inputs, weight_, layout, is_constant, packed);
  });
  for (const auto part : kPartsOfRows) {
    const TensorView& view = inputs.*part;
    if (is_constant && view) ReleaseFilePages(view.data, BytesOf(view));
  }
  const auto floats = [&](std::size_t offset) {
    return reinterpret_cast<const float*>(memory_.get() + offset);
  };
  weight_.codes = reinterpret_cast<const std::uint8_t*>(memory_.get());
  weight_.scales = memory_.get() + layout.scales;
  weight_.zeros = inputs.zeros ? floats(layout.zeros) : nullptr;
  weight_.minimums = inputs.minimums ? memory_.get() + layout.minimums : nullptr;
  if (two_levels) {
    const auto* const factors = reinterpret_cast<const std::int8_t*>(memory_.get());
    weight_.scale_factors = factors + layout.scale_factors;
    weight_.minimum_factors = inputs.minimums ? factors + layout.minimum_factors : nullptr;
  }
  SetLimits(inputs, &weight_);
  weight_.is_bfloat16 = weight_.IsWithin(-kLargestExact, kLargestExact);
  if (!inputs.palette) return;
  palette_.assign(kPaletteSize, 0.0f);
  for (std::size_t i = 0; i < (std::size_t{1} << inputs.bits); ++i) {
    palette_[i] = static_cast<float>(ReadFloating(inputs.palette.type, inputs.palette.data, i));
  }
  weight_.palette = palette_.data();
  weight_.is_bfloat16 = std::all_of(palette_.begin(), palette_.end(), IsBFloat16);
}

}  // namespace coreai
