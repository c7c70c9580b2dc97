#pragma once

#include <cstddef>
#include <functional>

#include "ops/few_bits/few_bits_inputs.h"

namespace coreai {

/// The few-bit matrices of experts as a node has them.
class ExpertWeights {
 public:
  /// `attributes` has no tensors; `input` returns the tensor at an index of the op's inputs.
  ExpertWeights(const FewBitsInputs& attributes,
                const std::function<TensorView(std::size_t)>& input);

  /// As of FewBitsInputs.
  bool IsComplete() const { return all_.IsComplete(); }

  /// Throws OpError if types or shapes are invalid.
  void Check(const Checker& check) const;

  /// [experts, rows, groups or blocks, bytes]
  const Shape& shape() const { return all_.codes.shape; }
  std::size_t count() const { return static_cast<std::size_t>(shape()[0]); }
  std::size_t rows() const { return static_cast<std::size_t>(shape()[1]); }
  std::size_t groups() const { return static_cast<std::size_t>(shape()[2]) * all_.groups_of_row(); }
  std::size_t depth() const { return groups() * all_.group; }
  bool has_palette() const { return all_.palette.present; }

  /// The matrix of one expert.
  FewBitsInputs Expert(std::size_t index) const;

  /// Whether both have the same tensors, in the same memory.
  bool SameMemory(const ExpertWeights& other) const { return all_.SameMemory(other.all_); }

 private:
  FewBitsInputs all_;  // with an axis of experts
};

}  // namespace coreai
