#pragma once

// Included after hwy/highway.h, in the part of a kernel's .cc that is compiled once.

#include "simd/target.h"

/// A kernel that benefits from VNNI is compiled for AVX3_ZEN4 as well (its file
/// defines COREAI_DISABLED_BF16_TARGETS as 0 at the top); other kernels use their AVX3 version.
#if HWY_TARGETS & HWY_AVX3_ZEN4
#define COREAI_CHOOSE_AVX512_BF16(FUNCTION) HWY_CHOOSE_AVX3_ZEN4(FUNCTION)
#else
#define COREAI_CHOOSE_AVX512_BF16(FUNCTION) HWY_CHOOSE_AVX3(FUNCTION)
#endif

/// Initializer of an array indexed by Target: the function compiled for each target, or null.
#define COREAI_TARGETS(FUNCTION) COREAI_TARGETS_AND_AMX(FUNCTION, FUNCTION)

/// The same for a kernel with a version for AMX, which uses AmxTiles (simd/amx-inl.h). AMX needs no
/// flags of the compiler: that version is compiled for AVX-512.
#ifdef COREAI_MODEL_TILES  // the fuzzer's: on every target
#define COREAI_TARGETS_WITH_AMX(FUNCTION, AMX_FUNCTION) COREAI_TARGETS(AMX_FUNCTION)
#else
#define COREAI_TARGETS_WITH_AMX COREAI_TARGETS_AND_AMX
#endif

/// The function that is compiled for the Target TARGET.
#define COREAI_FOR(TARGET, FUNCTION) COREAI_FOR_OF(TARGET, FUNCTION, COREAI_TARGETS(FUNCTION))

/// The same for a kernel with a version for AMX.
#define COREAI_FOR_WITH_AMX(TARGET, FUNCTION, AMX_FUNCTION) \
  COREAI_FOR_OF(TARGET, FUNCTION, COREAI_TARGETS_WITH_AMX(FUNCTION, AMX_FUNCTION))

// The fallback is compiled everywhere; the others are null where they are not.
#define COREAI_FOR_OF(TARGET, FUNCTION, ...) \
  OfTarget<decltype(HWY_CHOOSE_FALLBACK(FUNCTION))>(TARGET, __VA_ARGS__)

namespace coreai {

/// Whether COREAI_TARGETS_WITH_AMX has the version for AMX at this target.
constexpr bool HasAmxVersion([[maybe_unused]] Target target) {
#ifdef COREAI_MODEL_TILES
  return true;
#else
  return target == Target::kAmx;
#endif
}

template <class Function>
constexpr Function OfTarget(Target target, const Function (&versions)[kTargetCount]) {
  return versions[static_cast<std::size_t>(target)];
}

}  // namespace coreai

#define COREAI_TARGETS_AND_AMX(FUNCTION, AMX_FUNCTION) \
  {&N_SCALAR_FMA::FUNCTION,                            \
   HWY_CHOOSE_FALLBACK(FUNCTION),                      \
   HWY_CHOOSE_NEON_WITHOUT_AES(FUNCTION),              \
   HWY_CHOOSE_AVX2(FUNCTION),                          \
   HWY_CHOOSE_AVX3(FUNCTION),                          \
   COREAI_CHOOSE_AVX512_BF16(FUNCTION),                \
   COREAI_CHOOSE_AVX512_BF16(AMX_FUNCTION)}
