#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/convolution/convolution.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/convolution/convolution_columns-inl.h"
#include "kernels/convolution/convolution_planes-inl.h"

#if HWY_ONCE
#include "simd/dispatch.h"

namespace coreai {

ConvolutionPackKernel FindConvolutionPack(Target target, DType dtype) {
  return COREAI_FOR(target, SelectConvolutionPack)(dtype);
}

ConvolutionPackKernel FindConvolutionPackRows(Target target, DType dtype) {
  return COREAI_FOR(target, SelectConvolutionPackRows)(dtype);
}

ConvolutionTurnKernel FindConvolutionTurn(Target target, DType dtype) {
  return COREAI_FOR(target, SelectConvolutionTurn)(dtype);
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
