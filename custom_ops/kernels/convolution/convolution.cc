#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/convolution/convolution.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/convolution/convolution_columns-inl.h"
#include "kernels/convolution/convolution_filters-inl.h"
#include "kernels/convolution/convolution_planes-inl.h"

#if HWY_ONCE
#include "simd/dispatch.h"

namespace coreai {

ConvolutionPackKernel FindConvolutionPack(Target target, DType dtype) {
  return COREAI_FOR(target, SelectConvolutionPack)(dtype);
}

std::size_t ConvolutionFiltersScratch(const ConvolutionSizes& sizes, std::size_t channels,
                                      std::size_t count, DType dtype) {
  const std::size_t size = SizeOf(dtype);
  // The first windows may be in place where the last ones reach padding.
  const bool copies = !ConvolutionCover(sizes, channels, 0, sizes.windows(), size).in_place;
  const ConvolutionCover part(sizes, channels, 0, count, size);
  return count * kPanelBytes + (copies ? channels * part.copied * size : 0) +
         (channels * sizes.window_size() + 7) * sizeof(std::size_t);
}

GatherMmPackRightKernel FindConvolutionPackFilters(Target target, DType dtype) {
  return COREAI_FOR(target, SelectConvolutionPackFilters)(dtype);
}

ConvolutionFinishKernel FindConvolutionFinish(Target target, DType dtype) {
  return COREAI_FOR(target, SelectConvolutionFinish)(dtype);
}

ConvolutionFiltersKernel FindConvolutionFilters(Target target, DType dtype) {
  return COREAI_FOR(target, SelectConvolutionFilters)(dtype);
}

std::size_t ConvolutionPlanesScratch(const ConvolutionSizes& sizes) {
  const ConvolutionPart part(sizes);
  return (part.rows * part.columns + sizes.window_size()) * kPartLaneBytes;
}

ConvolutionPlanesKernel FindConvolutionPlanes(Target target, DType dtype) {
  return COREAI_FOR(target, SelectConvolutionPlanes)(dtype);
}

NarrowKernel FindNarrow(Target target, DType dtype) {
  return COREAI_FOR(target, SelectNarrow)(dtype);
}

}  // namespace coreai
#endif
