#pragma once

#include <cstddef>
#include <memory>

#include "kernels/dtype.h"
#include "ort/composite.h"
#include "ort/kernel_context.h"
#include "ort/kernel_info.h"
#include "ort/shape_inference.h"
#include "simd/target.h"

namespace coreai {

/// The kernel of one node, with its attributes read and checked. It may run any number of times,
/// also concurrently.
class Op {
 public:
  virtual ~Op() = default;

  /// Checks the inputs, allocates the output and fills it. Throws OpError.
  virtual void Compute(const KernelContext& context) const = 0;
};

/// A composite: its declaration and its implementation.
struct OpDefinition {
  const schema::Composite& composite;
  /// Creates the kernel of a node whose `T` is `dtype`. Throws OpError.
  std::unique_ptr<Op> (*create)(const KernelInfo& info, DType dtype, Target target);
  /// Sets the output's type, and its shape if the inputs' shapes are known. onnxruntime merges the
  /// dtypes of an op into one schema and calls any of them, so the type is read from the inputs.
  void (*infer_shape)(const ShapeInference& shapes);
  std::size_t state_input = kNoTensor;
  std::size_t state_output = kNoTensor;
  bool in_place = false;
  static constexpr std::size_t kNoTensor = static_cast<std::size_t>(-1);

  bool has_state() const { return state_input != kNoTensor; }

  /// The same op with a state (an input and an output), which may be float32 in an op of any type.
  /// The output has the type of the input, or the op's type if the input is absent.
  constexpr OpDefinition WithState(std::size_t input, std::size_t output) const {
    return {composite, create, infer_shape, input, output, in_place};
  }
  /// The same op, whose first output may reuse the memory of its first input.
  constexpr OpDefinition InPlace() const {
    return {composite, create, infer_shape, state_input, state_output, true};
  }
};

/// Checks the version attribute that every composite has. Throws OpError if the model requires a
/// later version of the composite.
void CheckVersion(const KernelInfo& info, const schema::Composite& composite);

ONNXTensorElementDataType OnnxType(DType dtype);

/// The ops of a domain.
struct OpList {
  const char* domain;
  const OpDefinition* const* begin;
  std::size_t size;
};

}  // namespace coreai
