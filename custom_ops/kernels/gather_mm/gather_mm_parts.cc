#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gather_mm/gather_mm_parts.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/gather_mm/gather_mm_parts-inl.h"
#include "kernels/gather_mm/gather_mm_parts.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

inline GatherMmOfParts SelectParts() { return KernelsOfParts<KernelTiles>(); }

inline GatherMmOfParts NoParts() { return {}; }

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

#include "simd/dispatch.h"

namespace coreai {
namespace {

// Up to this number of rows, reading the parts takes longer than multiply-adds (768 × 768 and
// 768 × 3072, 2026-11).
constexpr std::size_t kFewRows = 47;
constexpr std::size_t kBytes = 6;  // of the parts of a number
constexpr int kMantissa = 23, kBias = 127, kSmallest = -126;

// The bits of 2^exponent, between zero and infinity.
std::uint32_t PowerOfTwo(int exponent) {
  return static_cast<std::uint32_t>(std::clamp(exponent + kBias, 0, 255)) << kMantissa;
}

// Bits of 2^30, and the depth up to which small sums are recognized.
constexpr std::uint32_t kLargest = std::uint32_t{30 + kBias} << kMantissa;
constexpr std::size_t kMaxDepth = std::size_t{1} << 20;

}  // namespace

bool PartsFit(const PartsRange& matrix, std::size_t depth) {
  return matrix.largest <= kLargest && depth <= kMaxDepth;
}

PartsRange ExactRowsOf(const PartsRange& matrix) {
  if (matrix.largest == 0) return {0, kLargest};
  // Numbers of exponent e are multiples of 2^(e - 23), parts above that of 2^(e - 15) and 2^(e -
  // 7): products of parts, and their sums, are multiples of 2^-126 if that of 2^(e - 31) is one,
  // where e is the sum of both exponents. Parts must not be subnormal themselves.
  const int smallest = static_cast<int>(matrix.smallest >> kMantissa) - kBias;
  if (smallest < kSmallest + kMantissa) return {0xFFFFFFFFu, kLargest};
  return {PowerOfTwo(std::max(kSmallest + 31 - smallest, kSmallest + kMantissa)), kLargest};
}

GatherMmLeft PartsLeft() {
  return {DType::kFloat32, kFewRows, kGatherMmMaxTileRows, 32, 16, 32, 32, kBytes};
}

std::size_t PartsBytes(std::size_t depth, std::size_t columns) {
  return GatherMmPackedColumns(columns) * PartsLeft().RowBytes(depth);
}

GatherMmOfParts FindGatherMmOfParts(Target target) {
  return COREAI_FOR_WITH_AMX(target, NoParts, SelectParts)();
}

}  // namespace coreai
#endif
