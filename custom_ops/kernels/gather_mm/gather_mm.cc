#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gather_mm/gather_mm.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/gather_mm/gather_mm-inl.h"
#include "kernels/gather_mm/gather_mm_amx.h"
#include "kernels/gather_mm/widen-inl.h"

#if HWY_ONCE
#include "simd/dispatch.h"

namespace coreai {
namespace {

// Whether tile registers multiply.
bool UsesTiles(Target target, DType dtype) {
  return HasAmxVersion(target) && (dtype == DType::kBFloat16 || dtype == DType::kFloat16);
}

}  // namespace

GatherMmKernel FindGatherMm(Target target, DType dtype, GatherMmLayout layout) {
  if (UsesTiles(target, dtype)) return FindGatherMmOfTiles(target, dtype).product(layout);
  return COREAI_FOR(target, SelectGatherMm)(dtype, layout);
}

GatherMmPackLeftKernel FindGatherMmPackLeft(Target target, DType dtype) {
  if (UsesTiles(target, dtype)) return FindGatherMmOfTiles(target, dtype).pack_left;
  return COREAI_FOR(target, SelectGatherMmPackLeft)(dtype);
}

GatherMmPackRightKernel FindGatherMmPackRight(Target target, DType dtype, bool transposed) {
  if (UsesTiles(target, dtype)) return FindGatherMmOfTiles(target, dtype).pack_right(transposed);
  return COREAI_FOR(target, SelectGatherMmPackRight)(dtype, transposed);
}

GatherMmLeft GatherMmLeftOf(Target target, DType dtype) {
  if (!UsesTiles(target, dtype)) {
    const DType wide = WideDType(dtype);
    return {wide, kGatherMmFewRows, kGatherMmMaxRows, 8, 1, 1, kGatherMmColumnStep, SizeOf(wide)};
  }
  // Of float16, rows are read in place as float32, or packed as two parts.
  const bool parts = dtype == DType::kFloat16;
  return {parts ? DType::kFloat32 : dtype,
          parts ? kGatherMmFewRows : 0,
          kGatherMmMaxTileRows,
          32,
          16,
          32,
          32,
          parts ? SizeOf(DType::kFloat32) : SizeOf(dtype)};
}

WidenKernel FindWiden(Target target, DType dtype) { return COREAI_FOR(target, SelectWiden)(dtype); }

std::size_t GatherMmPackedBytes(Target target, DType dtype, std::size_t depth,
                                std::size_t columns) {
  const std::size_t step = GatherMmLeftOf(target, dtype).depth_step;
  return (depth + step - 1) / step * step * GatherMmPackedColumns(columns) * SizeOf(dtype);
}

}  // namespace coreai
#endif
