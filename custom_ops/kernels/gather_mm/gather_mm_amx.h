#pragma once

#include "kernels/gather_mm/gather_mm.h"

namespace coreai {

/// The kernels of gather_mm that multiply tiles.
struct GatherMmOfTiles {
  GatherMmKernel (*product)(GatherMmLayout layout);
  GatherMmPackLeftKernel pack_left;
  GatherMmPackRightKernel (*pack_right)(bool transposed);
};

/// `target` has tiles, `dtype` is bfloat16 or float16.
GatherMmOfTiles FindGatherMmOfTiles(Target target, DType dtype);

}  // namespace coreai
