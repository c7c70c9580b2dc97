#pragma once

// Included after hwy/highway.h, in the part of a kernel's .cc that is compiled once.

#include "simd/target.h"

/// Initialiser of an array indexed by Target: a function as compiled for each target, or null.
#define COREAI_TARGETS(FUNCTION)                                         \
  {HWY_CHOOSE_FALLBACK(FUNCTION), HWY_CHOOSE_NEON_WITHOUT_AES(FUNCTION), \
   HWY_CHOOSE_AVX2(FUNCTION), HWY_CHOOSE_AVX3(FUNCTION)}
