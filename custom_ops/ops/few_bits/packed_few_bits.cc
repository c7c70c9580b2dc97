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
constexpr std::size_t kLayoutVersion = 2;

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

/// Where the parts of a packed weight are in its memory, after the codes; each is aligned to 64.
struct PackedLayout {
  std::size_t scales, zeros, minimums, size;

  PackedLayout(const FewBitsWeight& weight, const FewBitsInputs& inputs) {
    const std::size_t strips = (inputs.columns() + kFewBitsStrip - 1) / kFewBitsStrip;
    const std::size_t count = strips * kFewBitsStrip * weight.groups;  // a multiple of 64
    scales = strips * weight.strip_bytes();
    zeros = scales + count * SizeOf(weight.scale);
    minimums = zeros + (inputs.zeros ? count * sizeof(float) : 0);
    size = minimums + (inputs.minimums ? count * sizeof(float) : 0);
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
PackedKey KeyOf(const FewBitsInputs& inputs) {
  ContentHash hash;
  for (const std::size_t number :
       {kLayoutVersion, inputs.bits, inputs.group, inputs.scale_bits, inputs.columns()}) {
    hash.Add(number);
  }
  ForPieces(inputs, true, [&](const std::uint8_t* codes, std::size_t, std::size_t count) {
    hash.Add(codes, count * BytesOfColumn(inputs));
  });
  if (inputs.table) {
    const BlockCodes blocks = inputs.blocks();
    hash.Add(blocks.width);
    hash.Add(blocks.fields);
    hash.Add(blocks.table, BytesOf(inputs.table));
    hash.Add(blocks.layout, ElementCount(inputs.layout.shape) * sizeof(*blocks.layout));
  }
  for (const auto part : kPartsOfRows) {
    const TensorView& view = inputs.*part;
    hash.Add(static_cast<std::uint64_t>(view.type));
    hash.Add(view.data, BytesOf(view));
  }
  return hash.key();
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

void PackAllCodes(const FewBitsInputs& inputs, const FewBitsWeight& weight, bool release,
                  char* packed) {
  ForPieces(inputs, release, [&](const std::uint8_t* codes, std::size_t first, std::size_t count) {
    auto* const to =
        reinterpret_cast<std::uint8_t*>(packed) + first / kFewBitsStrip * weight.strip_bytes();
    if (inputs.table) return PackBlocks(inputs.Columns(first, count), weight, to);
    PackCodes(codes, count, weight.groups, weight.group, inputs.bits, weight.padded, to);
  });
}

/// The index of a group's scale in packed memory.
std::size_t PlaceOf(std::size_t column, std::size_t g, std::size_t groups) {
  return (column / kFewBitsStrip * groups + g) * kFewBitsStrip + column % kFewBitsStrip;
}

void PackScales(const FewBitsInputs& inputs, const FewBitsWeight& weight,
                const PackedLayout& layout, char* packed) {
  std::memset(packed + layout.scales, 0, layout.size - layout.scales);
  auto* const zeros = reinterpret_cast<float*>(packed + layout.zeros);
  auto* const minimums = reinterpret_cast<float*>(packed + layout.minimums);
  const std::size_t bytes = SizeOf(weight.scale);
  const auto* const source = static_cast<const char*>(inputs.scales.data);
  for (std::size_t c = 0; c < inputs.columns(); ++c) {
    for (std::size_t g = 0; g < weight.groups; ++g) {
      const std::size_t from = c * weight.groups + g, to = PlaceOf(c, g, weight.groups);
      char* const scale_at = packed + layout.scales + to * bytes;
      if (inputs.zeros) zeros[to] = static_cast<float>(ZeroPoint(inputs.zeros, from));
      if (weight.scale == DType::kFloat32 || inputs.minimums) {
        const FewBitsInputs::Levels levels = inputs.LevelsOf(c, g);
        if (inputs.minimums) minimums[to] = static_cast<float>(levels.minimum);
        const auto scale = static_cast<float>(levels.scale);
        if (weight.scale == DType::kFloat32) std::memcpy(scale_at, &scale, bytes);
      }
      if (weight.scale != DType::kFloat32) std::memcpy(scale_at, source + from * bytes, bytes);
    }
  }
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
  // Products of two levels need more bits than float16 has.
  weight_.scale =
      inputs.scale_codes || inputs.table ? DType::kFloat32 : ScaleType(inputs.scales.type);
  const PackedLayout layout(weight_, inputs);
  const PackedKey key = file == nullptr ? PackedKey{} : KeyOf(inputs);
  memory_ = PackedMemory(std::move(file), key, layout.size, [&](char* packed) {
    PackAllCodes(inputs, weight_, is_constant, packed);
    PackScales(inputs, weight_, layout, packed);
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
  weight_.minimums = inputs.minimums ? floats(layout.minimums) : nullptr;
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
