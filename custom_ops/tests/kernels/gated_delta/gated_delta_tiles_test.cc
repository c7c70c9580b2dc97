// The gated delta rule by products of tile registers. On every target by their model; what AMX
// itself gives is compared with that bit by bit.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/gated_delta/gated_delta_tiles_test.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "kernels/gated_delta/gated_delta_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

template <typename T, class Tiles>
void GatedDeltaOf(const GatedDeltaProblem& a, size_t item, void* scratch) {
  GatedDeltaTiles<T, Tiles>(a, item, scratch).Run();
}

inline GatedDeltaKernel KernelOfModel(DType dtype) {
  if (dtype == DType::kFloat16) return GatedDeltaOf<hwy::float16_t, ModelTiles>;
  return GatedDeltaOf<hwy::bfloat16_t, ModelTiles>;
}

inline GatedDeltaKernel KernelOfAmx(DType dtype) {
  if (dtype == DType::kFloat16) return GatedDeltaOf<hwy::float16_t, KernelTiles>;
  return GatedDeltaOf<hwy::bfloat16_t, KernelTiles>;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/gated_delta/gated_delta_case.h"
#include "simd/dispatch.h"

namespace coreai::testing {
namespace {

using Choose = GatedDeltaKernel (*)(DType);
constexpr Choose kModel[] = COREAI_TARGETS(KernelOfModel);
constexpr Choose kAmx[] = COREAI_TARGETS(KernelOfAmx);
constexpr DType kTypes[] = {DType::kBFloat16, DType::kFloat16};

// Bits, so that NaN equals NaN.
bool SameBits(const Tensor& a, const Tensor& b, DType dtype) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * SizeOf(dtype)) == 0;
}

void Check(const GatedDeltaCase& c, DType dtype, const GatedDeltaOptions& options = {}) {
  const GatedDeltaResult want = GatedDeltaReference(c);
  const DType state_type = options.wide_state ? WideDType(dtype) : dtype;
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(Describe(c, target, dtype, options));
    const auto at = static_cast<std::size_t>(target);
    const GatedDeltaRun got = RunGatedDelta(kModel[at](dtype), c, dtype, options);
    ExpectNear(got, want, dtype, options);
    if (target != Target::kAmx) continue;
    const GatedDeltaRun native = RunGatedDelta(kAmx[at](dtype), c, dtype, options);
    EXPECT_TRUE(SameBits(native.output, got.output, dtype));
    if (!options.state_wanted) continue;
    EXPECT_TRUE(SameBits(native.state, got.state, state_type));
  }
}

TEST(GatedDeltaTiles, EveryLengthAroundTheChunks) {
  for (const DType dtype : kTypes) {
    for (const std::size_t length : {24u, 31u, 32u, 33u, 47u, 49u, 64u, 191u, 192u, 193u, 400u}) {
      Check(Sized(dtype, length, 8, 5), dtype, {true, false, length % 3});
    }
  }
}

TEST(GatedDeltaTiles, EveryKeyAndValueDim) {
  for (const DType dtype : kTypes) {
    for (std::size_t n = 1; n <= 2 * 32 + 1; ++n) {
      Check(Sized(dtype, 25, n, 3), dtype, {true, false, n % 3});
      Check(Sized(dtype, 25, 3, n), dtype, {true, false, n % 3});
    }
    for (const std::size_t n : {95u, 128u, 129u, 161u}) Check(Sized(dtype, 40, n, n), dtype);
  }
}

TEST(GatedDeltaTiles, GroupedHeadsAndBatches) {
  for (const DType dtype : kTypes) {
    Check(Sized(dtype, 34, 6, 7, 2, 2, 3), dtype);
    Check(Sized(dtype, 34, 6, 7, 2, 6, 2), dtype, {true});
  }
}

TEST(GatedDeltaTiles, StatesOfBothTypesOrNone) {
  for (const DType dtype : kTypes) {
    GatedDeltaCase c = Sized(dtype, 40, 10, 9, 2, 4);
    Check(c, dtype, {true, false, 1});
    Check(c, dtype, {true, true, 1});
    Check(c, dtype, {false, true, 1});
    Check(c, dtype, {true, false, 0, false});
    c.initial_state.clear();
    Check(c, dtype, {false, false, 1});
    Check(c, dtype, {true, false, 1});
  }
}

TEST(GatedDeltaTiles, DividesByTheLengthOfQueriesAndKeys) {
  for (const DType dtype : kTypes) {
    GatedDeltaCase c = Sized(dtype, 37, 19, 6);
    c.normalize = true;
    Check(c, dtype, {true});
    std::fill_n(c.key.begin(), 19, 0);  // no length at all
    Check(c, dtype, {true});
  }
}

// A state of 512 tokens that hardly decays keeps what is rounded in every chunk.
TEST(GatedDeltaTiles, LongStatesAreAsAccurateAsFloat) {
  for (const DType dtype : kTypes) {
    GatedDeltaCase c = Sized(dtype, 512, 64, 20);
    for (double& x : c.log_decay) x = static_cast<float>(x * 0.002);
    Check(c, dtype, {true});
  }
}

TEST(GatedDeltaTiles, DecaysOfNothingAndOfAll) {
  for (const DType dtype : kTypes) {
    GatedDeltaCase c = Sized(dtype, 45, 5, 6);
    for (std::size_t i = 0; i < c.length; ++i) {
      c.log_decay[i] = i % 3 == 0 ? -INFINITY : i % 3 == 1 ? 0 : -200;
    }
    Check(c, dtype, {true});
    std::fill(c.beta.begin(), c.beta.end(), 1);
    Check(c, dtype, {true});
    std::fill(c.beta.begin(), c.beta.end(), 0);
    Check(c, dtype, {true});
    // Weak and strong ones, and growth.
    for (std::size_t i = 0; i < c.length; ++i) c.log_decay[i] = i % 2 == 0 ? -0.0001f : -30;
    c.log_decay[30] = 85;
    c.log_decay[31] = -90;
    Check(c, dtype);
  }
}

TEST(GatedDeltaTiles, NanSpreadsAsInTheRecurrence) {
  for (const DType dtype : kTypes) {
    for (const std::size_t token : {0u, 9u, 17u, 31u, 32u}) {
      GatedDeltaCase value = Sized(dtype, 40, 5, 20);
      value.value[token * 20 + 3] = NAN;  // its column, from that token on
      Check(value, dtype, {true});
      GatedDeltaCase key = Sized(dtype, 40, 5, 20);
      key.key[token * 5 + 1] = NAN;
      Check(key, dtype, {true});
      GatedDeltaCase query = Sized(dtype, 40, 5, 20);
      query.query[token * 5 + 1] = NAN;  // this token
      Check(query, dtype, {true});
      GatedDeltaCase decay = Sized(dtype, 40, 5, 20);
      decay.log_decay[token] = NAN;  // everything from it on
      Check(decay, dtype, {true});
    }
    GatedDeltaCase state = Sized(dtype, 40, 5, 20);
    state.initial_state[7] = NAN;
    Check(state, dtype, {true});
  }
}

}  // namespace
}  // namespace coreai::testing
#endif
