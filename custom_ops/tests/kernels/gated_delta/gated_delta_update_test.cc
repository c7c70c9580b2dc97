#include "kernels/gated_delta/gated_delta_update.h"

#include <algorithm>

#include "kernels/gated_delta/gated_delta_case.h"

namespace coreai::testing {
namespace {

// Runs a case on every target and compares.
void Check(const GatedDeltaCase& c, DType dtype, const GatedDeltaOptions& options = {}) {
  const GatedDeltaResult want = GatedDeltaReference(c);
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(Describe(c, target, dtype, options));
    ExpectNear(RunGatedDelta(FindGatedDelta(target, dtype), c, dtype, options), want, dtype,
               options);
  }
}

TEST(GatedDelta, EveryLengthAroundTheChunks) {
  for (const DType dtype : AllDTypes()) {
    for (std::size_t length = 0; length <= 14; ++length) {
      Check(Sized(dtype, length, 8, 5), dtype, {false, false, length % 3});
    }
    for (const std::size_t length : {191u, 192u, 193u, 400u})
      Check(Sized(dtype, length, 8, 5), dtype);
  }
}

TEST(GatedDelta, EveryKeyAndValueDim) {
  for (const DType dtype : AllDTypes()) {
    for (std::size_t n = 1; n <= 2 * 16 + 1; ++n) {
      for (const std::size_t length : {1u, 4u}) {
        Check(Sized(dtype, length, n, 3), dtype, {false, false, n % 3});
        Check(Sized(dtype, length, 3, n), dtype, {false, false, n % 3});
      }
    }
  }
}

TEST(GatedDelta, MoreColumnsThanAnItemHas) {
  for (const DType dtype : AllDTypes()) {
    for (const std::size_t value_dim : {127u, 128u, 129u, 141u, 300u}) {
      for (const std::size_t length : {1u, 7u}) Check(Sized(dtype, length, 20, value_dim), dtype);
    }
  }
}

TEST(GatedDelta, NoColumns) {
  for (const std::size_t length : {1u, 4u}) {
    Check(Sized(DType::kFloat32, length, 3, 0), DType::kFloat32);
  }
}

TEST(GatedDelta, GroupedHeadsAndBatches) {
  for (const DType dtype : AllDTypes()) {
    for (const std::size_t length : {1u, 8u}) {
      Check(Sized(dtype, length, 6, 7, 2, 2, 3), dtype);
      Check(Sized(dtype, length, 6, 7, 2, 6, 2), dtype);
      Check(Sized(dtype, length, 6, 7, 1, 4, 2), dtype);
    }
  }
}

TEST(GatedDelta, StatesOfBothTypesOrNone) {
  for (const DType dtype : AllDTypes()) {
    for (const std::size_t length : {1u, 3u, 8u}) {
      GatedDeltaCase c = Sized(dtype, length, 10, 9, 2, 4);
      Check(c, dtype, {true, false, 1});
      Check(c, dtype, {true, true, 1});
      Check(c, dtype, {false, true, 1});
      c.initial_state.clear();
      Check(c, dtype, {false, false, 1});
      Check(c, dtype, {true, false, 1});
    }
  }
}

TEST(GatedDelta, AStateNobodyWants) {
  for (const DType dtype : AllDTypes()) {
    for (const std::size_t length : {1u, 8u}) {
      Check(Sized(dtype, length, 10, 9), dtype, {true, false, 0, false});
      Check(Sized(dtype, length, 10, 9), dtype, {false, false, 0, false});
    }
  }
}

TEST(GatedDelta, DividesByTheLengthOfQueriesAndKeys) {
  for (const DType dtype : AllDTypes()) {
    for (const std::size_t length : {1u, 9u}) {
      GatedDeltaCase c = Sized(dtype, length, 19, 6);
      c.normalize = true;
      Check(c, dtype);
      std::fill_n(c.key.begin(), 19, 0);  // no length at all
      Check(c, dtype);
    }
  }
}

TEST(GatedDelta, DecaysOfNothingAndOfAll) {
  for (const DType dtype : AllDTypes()) {
    for (const std::size_t length : {1u, 13u}) {
      GatedDeltaCase c = Sized(dtype, length, 5, 6);
      for (std::size_t i = 0; i < length; ++i) {
        c.log_decay[i] = i % 3 == 0 ? -INFINITY : i % 3 == 1 ? 0 : -200;
      }
      Check(c, dtype);
      std::fill(c.beta.begin(), c.beta.end(), 1);
      Check(c, dtype);
      std::fill(c.beta.begin(), c.beta.end(), 0);
      Check(c, dtype);
    }
  }
}

TEST(GatedDelta, NanSpreadsAsInTheRecurrence) {
  for (const DType dtype : AllDTypes()) {
    for (const std::size_t length : {1u, 8u}) {
      GatedDeltaCase value = Sized(dtype, length, 5, 20);
      value.value[3] = NAN;  // its column, from that token on
      Check(value, dtype);
      GatedDeltaCase state = Sized(dtype, length, 5, 20);
      state.initial_state[7] = NAN;
      Check(state, dtype);
      GatedDeltaCase decay = Sized(dtype, length, 5, 20);
      decay.log_decay[length / 2] = NAN;  // everything after it
      Check(decay, dtype);
    }
  }
}

}  // namespace
}  // namespace coreai::testing
