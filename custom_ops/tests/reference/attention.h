#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace coreai::testing {

/// Sizes, attributes and inputs of attention, everything in double.
struct AttentionCase {
  std::size_t batch = 1, heads = 1, key_heads = 1, value_heads = 1;
  std::size_t queries = 1, keys = 1, head_dim = 1, value_dim = 1;
  double scale = 1, softcap = 0;
  bool causal = false;
  std::int64_t window = 0, offset = 0;
  std::vector<double> query, key, value;
  std::vector<double> sinks;  ///< empty: none
  /// Broadcast to [batch, heads, queries, keys] already; empty: none.
  std::vector<double> float_mask;
  std::vector<std::uint8_t> bool_mask;
};

inline double AttentionScore(const AttentionCase& c, std::size_t b, std::size_t h, std::size_t q,
                             std::size_t k) {
  const std::size_t key_head = h / (c.heads / c.key_heads);
  const double* x = c.query.data() + ((b * c.heads + h) * c.queries + q) * c.head_dim;
  const double* y = c.key.data() + ((b * c.key_heads + key_head) * c.keys + k) * c.head_dim;
  double score = 0;
  for (std::size_t i = 0; i < c.head_dim; ++i) score += x[i] * c.scale * y[i];
  if (c.softcap > 0) score = c.softcap * std::tanh(score / c.softcap);
  const std::size_t at = ((b * c.heads + h) * c.queries + q) * c.keys + k;
  if (!c.bool_mask.empty()) return c.bool_mask[at] != 0 ? score : -INFINITY;
  if (!c.float_mask.empty()) return score + c.float_mask[at];
  const std::int64_t distance =
      static_cast<std::int64_t>(q) + c.offset - static_cast<std::int64_t>(k);
  if (c.causal && distance < 0) return -INFINITY;
  if (c.window > 0 && std::abs(distance) >= c.window) return -INFINITY;
  return score;
}

inline std::vector<double> AttentionReference(const AttentionCase& c) {
  std::vector<double> output(c.batch * c.heads * c.queries * c.value_dim, 0.0);
  std::vector<double> scores(c.keys);
  for (std::size_t row = 0; row < c.batch * c.heads * c.queries; ++row) {
    const std::size_t q = row % c.queries, h = row / c.queries % c.heads;
    const std::size_t b = row / c.queries / c.heads;
    const std::size_t value_head = h / (c.heads / c.value_heads);
    double best = c.sinks.empty() ? -INFINITY : c.sinks[h];
    for (std::size_t k = 0; k < c.keys; ++k) {
      scores[k] = AttentionScore(c, b, h, q, k);
      if (scores[k] > best || std::isnan(scores[k])) best = scores[k];
    }
    if (best == -INFINITY) continue;  // attends to nothing: zeros
    double total = c.sinks.empty() ? 0.0 : std::exp(c.sinks[h] - best);
    for (double& score : scores) total += score = std::exp(score - best);
    for (std::size_t k = 0; k < c.keys; ++k) {
      const double* v =
          c.value.data() + ((b * c.value_heads + value_head) * c.keys + k) * c.value_dim;
      for (std::size_t i = 0; i < c.value_dim; ++i) {
        output[row * c.value_dim + i] += scores[k] / total * v[i];
      }
    }
  }
  return output;
}

}  // namespace coreai::testing
