#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/gated_delta/gated_delta_update.h"
#include "reference/gated_delta_update.h"
#include "tensor.h"

namespace coreai::testing {

/// Inputs that are numbers of the type: keys of about unit length, decays below one.
inline GatedDeltaCase Sized(DType dtype, std::size_t length, std::size_t key_dim,
                            std::size_t value_dim, std::size_t heads = 1,
                            std::size_t value_heads = 1, std::size_t batch = 1) {
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

struct GatedDeltaOptions {
  bool wide_state = false;
  bool in_place = false;
  std::size_t shift = 0;
  bool state_wanted = true;
};

/// What a run wrote.
struct GatedDeltaRun {
  Tensor output, state;
};

/// Runs a case with scratch memory of exactly the size asked for.
inline GatedDeltaRun RunGatedDelta(GatedDeltaKernel kernel, const GatedDeltaCase& c, DType dtype,
                                   const GatedDeltaOptions& options) {
  const DType state_type = options.wide_state ? WideDType(dtype) : dtype;
  const Tensor query(dtype, c.query, options.shift), key(dtype, c.key, options.shift);
  const Tensor value(dtype, c.value, options.shift);
  const Tensor log_decay(WideDType(dtype), c.log_decay), beta(WideDType(dtype), c.beta);
  Tensor before(state_type, c.initial_state, options.shift);
  Tensor after(state_type, c.batch * c.value_heads * c.key_dim * c.value_dim, options.shift);
  Tensor output(dtype, c.batch * c.length * c.value_heads * c.value_dim, options.shift);
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
  const Tensor scratch(DType::kFloat64, GatedDeltaScratchBytes(problem, dtype) / 8);
  for (std::size_t i = GatedDeltaItems(problem); i-- > 0;) kernel(problem, i, scratch.data());
  return {std::move(output), std::move(options.in_place ? before : after)};
}

inline void ExpectNear(const GatedDeltaRun& got, const GatedDeltaResult& want, DType dtype,
                       const GatedDeltaOptions& options) {
  ExpectNear(got.output, want.output, dtype);
  if (!options.state_wanted) return;
  ExpectNear(got.state, want.state, options.wide_state ? WideDType(dtype) : dtype);
}

inline ::testing::Message Describe(const GatedDeltaCase& c, Target target, DType dtype,
                                   const GatedDeltaOptions& options) {
  return ::testing::Message() << TargetName(target) << ' ' << Name(dtype) << " heads " << c.heads
                              << '/' << c.value_heads << " length " << c.length << " dims "
                              << c.key_dim << ',' << c.value_dim << " wide state "
                              << options.wide_state;
}

}  // namespace coreai::testing
