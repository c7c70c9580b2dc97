#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace coreai::testing {

/// Sizes and inputs of the gated delta rule, everything in double.
struct GatedDeltaCase {
  std::size_t batch = 1, heads = 1, value_heads = 1, length = 1, key_dim = 1, value_dim = 1;
  bool normalize = false;
  std::vector<double> query, key, value, log_decay, beta;
  std::vector<double> initial_state;  ///< empty: zeros
};

struct GatedDeltaResult {
  std::vector<double> output, state;
};

/// One row of queries or keys, divided by its length if the case says so.
inline std::vector<double> DeltaRow(const GatedDeltaCase& c, const std::vector<double>& all,
                                    std::size_t row) {
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(row * c.key_dim);
  std::vector<double> x(first, first + static_cast<std::ptrdiff_t>(c.key_dim));
  double sum = 1e-6;
  for (const double value : x) sum += value * value;
  if (c.normalize) {
    for (double& value : x) value /= std::sqrt(sum);
  }
  return x;
}

inline GatedDeltaResult GatedDeltaReference(const GatedDeltaCase& c) {
  const std::size_t state_size = c.key_dim * c.value_dim;
  GatedDeltaResult r;
  r.output.resize(c.batch * c.length * c.value_heads * c.value_dim);
  r.state = c.initial_state;
  r.state.resize(c.batch * c.value_heads * state_size);
  for (std::size_t head = 0; head < c.batch * c.value_heads; ++head) {
    const std::size_t b = head / c.value_heads, h = head % c.value_heads;
    const std::size_t key_head = b * c.heads + h / (c.value_heads / c.heads);
    double* state = r.state.data() + head * state_size;
    for (std::size_t t = 0; t < c.length; ++t) {
      const auto q = DeltaRow(c, c.query, key_head * c.length + t);
      const auto k = DeltaRow(c, c.key, key_head * c.length + t);
      const double decay = std::exp(c.log_decay[head * c.length + t]);
      for (std::size_t i = 0; i < state_size; ++i) state[i] *= decay;
      for (std::size_t v = 0; v < c.value_dim; ++v) {
        double known = 0, out = 0;
        for (std::size_t i = 0; i < c.key_dim; ++i) known += k[i] * state[i * c.value_dim + v];
        const double value = c.value[(head * c.length + t) * c.value_dim + v];
        const double write = c.beta[head * c.length + t] * (value - known);
        for (std::size_t i = 0; i < c.key_dim; ++i) {
          double& s = state[i * c.value_dim + v];
          s += k[i] * write;
          out += q[i] * s / std::sqrt(static_cast<double>(c.key_dim));
        }
        r.output[((b * c.length + t) * c.value_heads + h) * c.value_dim + v] = out;
      }
    }
  }
  return r;
}

}  // namespace coreai::testing
