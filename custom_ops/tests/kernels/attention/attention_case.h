#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "kernels/attention/attention.h"
#include "reference/attention.h"
#include "tensor.h"

namespace coreai::testing {

/// A case without inputs, with the usual scale.
inline AttentionCase Sized(std::size_t queries, std::size_t keys, std::size_t head_dim,
                           std::size_t value_dim, std::size_t heads = 1, std::size_t key_heads = 1,
                           std::size_t value_heads = 1, std::size_t batch = 1) {
  AttentionCase c;
  c.batch = batch;
  c.heads = heads;
  c.key_heads = key_heads;
  c.value_heads = value_heads;
  c.queries = queries;
  c.keys = keys;
  c.head_dim = head_dim;
  c.value_dim = value_dim;
  c.scale = head_dim == 0 ? 1 : 1 / std::sqrt(static_cast<double>(head_dim));
  return c;
}

/// Fills the inputs with numbers of the type, so that kernel and reference see the same.
inline void Randomize(AttentionCase* c, DType dtype, unsigned seed = 1) {
  const auto fill = [&](std::size_t count, unsigned salt) {
    return Tensor(dtype, Normal(count, seed * 16 + salt)).Values();
  };
  c->query = fill(c->batch * c->heads * c->queries * c->head_dim, 1);
  c->key = fill(c->batch * c->key_heads * c->keys * c->head_dim, 2);
  c->value = fill(c->batch * c->value_heads * c->keys * c->value_dim, 3);
}

/// A case's tensors, each `shift` elements after an aligned address and of exactly its size.
struct AttentionTensors {
  Tensor query, key, value, sinks;

  AttentionTensors(const AttentionCase& c, DType dtype, std::size_t shift)
      : query(dtype, c.query, shift),
        key(dtype, c.key, shift),
        value(dtype, c.value, shift),
        sinks(WideDType(dtype), c.sinks) {}
};

/// The case as kernels take it, without its mask. It points into the tensors.
inline AttentionProblem ProblemOf(const AttentionCase& c, const AttentionTensors& tensors,
                                  const Tensor& output) {
  AttentionProblem problem = {};
  problem.query = tensors.query.data();
  problem.key = tensors.key.data();
  problem.value = tensors.value.data();
  problem.output = output.data();
  problem.batch = c.batch;
  problem.heads = c.heads;
  problem.key_heads = c.key_heads;
  problem.value_heads = c.value_heads;
  problem.queries = c.queries;
  problem.keys = c.keys;
  problem.head_dim = c.head_dim;
  problem.value_dim = c.value_dim;
  problem.scale = c.scale;
  problem.softcap = c.softcap;
  problem.causal = c.causal;
  problem.window = c.window;
  problem.offset = c.offset;
  problem.sinks = c.sinks.empty() ? nullptr : tensors.sinks.data();
  return problem;
}

/// Runs all items of a problem, the last first, with scratch memory of exactly the size asked for,
/// which holds NaN.
inline void RunAll(AttentionKernel kernel, const AttentionProblem& problem, DType dtype) {
  const Tensor scratch(DType::kFloat64, AttentionScratchBytes(problem, dtype) / 8);
  std::memset(scratch.data(), 0xFF, scratch.size() * sizeof(double));
  for (std::size_t i = AttentionItems(problem); i-- > 0;) kernel(problem, i, scratch.data());
}

/// What to say beside a failure.
inline ::testing::Message Describe(const AttentionCase& c, Target target, DType dtype) {
  return ::testing::Message() << TargetName(target) << ' ' << Name(dtype) << " heads " << c.heads
                              << '/' << c.key_heads << '/' << c.value_heads << " queries "
                              << c.queries << " keys " << c.keys << " dims " << c.head_dim << ','
                              << c.value_dim << " causal " << c.causal << " window " << c.window
                              << " offset " << c.offset;
}

}  // namespace coreai::testing
