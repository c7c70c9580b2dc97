#include "ops/few_bits/few_bits_op.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "ops/schema.h"

namespace coreai {
namespace {

namespace names = schema::linear_nbits;  // other ops have the same attributes

// A sum of products of 8-bit integers and codes fits into 32 bits up to this size of a group.
constexpr std::size_t kLargestExactGroup = std::numeric_limits<std::int32_t>::max() / (255 * 127);
// Codes that are packed at a time if a weight is not packed once and for all: the memory of a
// product does not depend on the size of its weight.
constexpr std::size_t kPanelBytes = std::size_t{16} << 20;
constexpr std::int64_t kLargestGroup = std::int64_t{1} << 40;

/// Rounds groups to multiples of their largest magnitude / 127.
template <typename W>
void RoundGroups(W* x, std::size_t groups, std::size_t group) {
  for (std::size_t g = 0; g < groups; ++g, x += group) {
    W largest = static_cast<W>(kSmallestLargest);
    for (std::size_t i = 0; i < group; ++i) {
      const W magnitude = std::fabs(x[i]);
      if (!(magnitude <= largest)) largest = magnitude;  // also NaN, which stays
    }
    const W inverse = 127 / largest, step = largest / 127;
    for (std::size_t i = 0; i < group; ++i) x[i] = std::nearbyint(x[i] * inverse) * step;
  }
}

FewBitsInputs ReadAttributes(const KernelInfo& info, const Checker& check) {
  const std::int64_t bits = info.Int(names::kBits, names::kBitsDefault);
  const std::int64_t group = info.Int(names::kGroupSize, names::kGroupSizeDefault);
  const std::int64_t rounding = info.Int(names::kActivationBits, names::kActivationBitsDefault);
  const std::int64_t of_scales = info.Int(names::kScaleBits, names::kScaleBitsDefault);
  if (bits < 2 || bits > 8 || bits == 7) {
    check.Fail("attribute bits is " + std::to_string(bits) + ", expected 8, 6, 5, 4, 3 or 2");
  }
  if (of_scales != 0 && of_scales != 4 && of_scales != 6 && of_scales != 8) {
    check.Fail("attribute scale_bits is " + std::to_string(of_scales) + ", expected 8, 6, 4 or 0");
  }
  if (rounding != 0 && rounding != 8) {
    check.Fail("attribute activation_bits is " + std::to_string(rounding) + ", expected 0 or 8");
  }
  if (group < 1 || group > kLargestGroup || group * bits % 8 != 0) {
    check.Fail("attribute group_size is " + std::to_string(group) + ", expected whole bytes of " +
               std::to_string(bits) + "-bit codes");
  }
  FewBitsInputs inputs;
  inputs.bits = static_cast<std::size_t>(bits);
  inputs.group = static_cast<std::size_t>(group);
  inputs.scale_bits = static_cast<std::size_t>(of_scales);
  return inputs;
}

}  // namespace

FewBitsOp::FewBitsOp(const KernelInfo& info, const Checker& check, DType dtype, Target target)
    : dtype_(dtype),
      attributes_(ReadAttributes(info, check)),
      rounds_(info.Int(names::kActivationBits, names::kActivationBitsDefault) != 0),
      widen_(FindWiden(target, dtype)),
      product_(dtype, target, info.deterministic()) {}

bool FewBitsOp::MultipliesIntegers(bool has_palette) const {
  return rounds_ && !has_palette && dtype_ != DType::kFloat64 &&
         attributes_.group <= kLargestExactGroup;
}

std::size_t FewBitsOp::PartsOfRows(bool has_palette) const {
  if (RoundsValues(has_palette) || dtype_ == DType::kFloat32) return 3;
  return dtype_ == DType::kFloat16 ? 2 : 1;
}

void FewBitsOp::Prepare(const void* from, std::size_t groups, bool has_palette, void* to) const {
  const std::size_t group = attributes_.group;
  widen_(from, groups * group, to);
  if (!RoundsValues(has_palette)) return;
  if (WideDType(dtype_) == DType::kFloat64) {
    RoundGroups(static_cast<double*>(to), groups, group);
  } else {
    RoundGroups(static_cast<float*>(to), groups, group);
  }
}

void FewBitsOp::Multiply(const KernelContext& context, const FewBitsInputs& inputs,
                         const PackedFewBits* packed, const FewBitsCall& call) const {
  if (dtype_ == DType::kFloat64) return product_.MultiplyDouble(context, inputs, call);
  if (packed != nullptr) {
    return MultiplyPacked(context, packed->weight(), inputs.palette.present, call);
  }
  const std::size_t bytes = SizeOf(dtype_), wide = SizeOf(WideDType(dtype_));
  const std::size_t of_column =
      std::max<std::size_t>(1, inputs.groups() * attributes_.group * attributes_.bits / 8);
  const std::size_t fit = std::max(kFewBitsStrip, kPanelBytes / of_column);
  for (std::size_t first = 0; first < call.columns; first += fit) {
    const std::size_t count = std::min(fit, call.columns - first);
    const PackedFewBits panel(inputs.Columns(first, count));
    FewBitsCall part = call;
    part.columns = count;
    if (call.bias != nullptr) part.bias = static_cast<const char*>(call.bias) + first * wide;
    // The rows of the output are as long as the whole weight has columns.
    ScratchMemory rows;
    if (call.rows == 1 || count == call.columns) {
      part.output += first * bytes;
    } else {
      rows = AllocateScratch(call.rows * count * bytes);
      part.output = rows.get();
    }
    MultiplyPacked(context, panel.weight(), inputs.palette.present, part);
    for (std::size_t row = 0; rows != nullptr && row < call.rows; ++row) {
      std::memcpy(call.output + (row * call.columns + first) * bytes,
                  rows.get() + row * count * bytes, count * bytes);
    }
  }
}

void FewBitsOp::MultiplyPacked(const KernelContext& context, const FewBitsWeight& weight,
                               bool has_palette, const FewBitsCall& call) const {
  if (MultipliesIntegers(has_palette)) return product_.MultiplyRounded(context, weight, call);
  product_.Multiply(context, weight, PartsOfRows(has_palette), call);
}

}  // namespace coreai
