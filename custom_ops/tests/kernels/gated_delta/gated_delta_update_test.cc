#include "kernels/gated_delta/gated_delta_update.h"

#include <algorithm>

#include "reference/gated_delta_update.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

// Inputs that are numbers of the type: keys of about unit length, decays below one.
GatedDeltaCase Sized(DType dtype, std::size_t length, std::size_t key_dim, std::size_t value_dim,
                     std::size_t heads = 1, std::size_t value_heads = 1, std::size_t batch = 1) {
  GatedDeltaCase c;
  c.batch = batch;
  c.heads = heads;
  c.value_heads = value_heads;
  c.length = length;
  c.key_dim = key_dim;
  c.value_dim = value_dim;
  const auto fill = [&](DType type, std::size_t count, unsigned seed, double mean, double spread) {
    return Tensor(type, Normal(count, seed, mean, spread)).Values();
  };
  const double unit = 1 / std::sqrt(static_cast<double>(std::max<std::size_t>(1, key_dim)));
  const std::size_t tokens = batch * length, wide_tokens = tokens * value_heads;
  c.query = fill(dtype, tokens * heads * key_dim, 1, 0, 1);
  c.key = fill(dtype, tokens * heads * key_dim, 2, 0, unit);
  c.value = fill(dtype, wide_tokens * value_dim, 3, 0, 1);
  c.log_decay = fill(WideDType(dtype), wide_tokens, 4, -0.5, 0.2);
  c.beta = fill(WideDType(dtype), wide_tokens, 5, 0.5, 0.1);
  c.initial_state = fill(dtype, batch * value_heads * key_dim * value_dim, 6, 0, 1);
  return c;
}

struct Options {
  bool wide_state = false;
  bool in_place = false;
  std::size_t shift = 0;
  bool state_wanted = true;
};

// Runs a case on every target, with scratch memory of exactly the size asked for, and compares.
void Check(const GatedDeltaCase& c, DType dtype, const Options& options = {}) {
  const GatedDeltaResult want = GatedDeltaReference(c);
  const DType state_type = options.wide_state ? WideDType(dtype) : dtype;
  const Tensor query(dtype, c.query, options.shift), key(dtype, c.key, options.shift);
  const Tensor value(dtype, c.value, options.shift);
  const Tensor log_decay(WideDType(dtype), c.log_decay), beta(WideDType(dtype), c.beta);
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(::testing::Message()
                 << TargetName(target) << ' ' << Name(dtype) << " heads " << c.heads << '/'
                 << c.value_heads << " length " << c.length << " dims " << c.key_dim << ','
                 << c.value_dim << " wide state " << options.wide_state);
    const Tensor before(state_type, c.initial_state, options.shift);
    const Tensor after(state_type, want.state.size(), options.shift);
    const Tensor output(dtype, want.output.size(), options.shift);
    GatedDeltaProblem problem = {};
    problem.query = query.data();
    problem.key = key.data();
    problem.value = value.data();
    problem.log_decay = log_decay.data();
    problem.beta = beta.data();
    problem.initial_state = c.initial_state.empty() ? nullptr : before.data();
    problem.output = output.data();
    if (options.state_wanted) problem.state = options.in_place ? before.data() : after.data();
    problem.batch = c.batch;
    problem.heads = c.heads;
    problem.value_heads = c.value_heads;
    problem.length = c.length;
    problem.key_dim = c.key_dim;
    problem.value_dim = c.value_dim;
    problem.wide_state = options.wide_state;
    problem.normalize = c.normalize;
    const GatedDeltaKernel kernel = FindGatedDelta(target, dtype);
    const Tensor scratch(DType::kFloat64, GatedDeltaScratchBytes(problem, dtype) / 8);
    for (std::size_t i = GatedDeltaItems(problem); i-- > 0;) kernel(problem, i, scratch.data());
    ExpectNear(output, want.output, dtype);
    if (!options.state_wanted) continue;
    ExpectNear(options.in_place ? before : after, want.state, state_type);
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
