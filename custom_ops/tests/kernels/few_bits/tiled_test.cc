// Products of tiles with the model of tile registers, on every target.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/few_bits/tiled_test.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/few_bits/tiled-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

inline void RoundedInModel(const FewBitsWeight& w, const RoundedRows& rows) {
#if HWY_TARGET == HWY_SCALAR
  Rounded(w, rows);
#else
  RoundedWithTiles<ModelTiles>(w, rows);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/few_bits/few_bits_case.h"
#include "simd/dispatch.h"

namespace coreai::testing {
namespace {

TEST(FewBitsTiles, AgreeWithTheReferenceInTheModel) {
  for (const Target target : SupportedTargets()) {
    const RoundedKernel kernel = COREAI_FOR(target, RoundedInModel);
    for (const std::size_t bits : {8u, 6u, 5u, 4u, 2u}) {
      for (const std::size_t rows : {15u, 16u, 29u, 34u}) {
        for (const std::size_t group : {8u, 32u, 40u, 64u, 96u, 128u, 136u}) {
          CheckRoundedKernels({bits, group, 5, 20, rows, DType::kFloat16, rows % 2 == 0}, target,
                              {kernel});
        }
      }
    }
  }
}

}  // namespace
}  // namespace coreai::testing
#endif
