#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ort/error.h"

namespace coreai {

using Shape = std::vector<std::int64_t>;

/// An input tensor; false if the node has no input at that index.
struct TensorView {
  const void* data = nullptr;
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  Shape shape;
  bool present = false;

  explicit operator bool() const { return present; }
};

/// Reads a tensor's type and shape without copying them to an object of the C API.
using ShapeReader = OrtStatus*(ORT_API_CALL*)(const OrtValue* value,
                                              ONNXTensorElementDataType* type,
                                              const std::int64_t** shape,
                                              std::size_t* rank)NO_EXCEPTION;

/// onnxruntime's; null before version 1.24.
ShapeReader FindShapeReader(const OrtApiBase& base);

/// Views the tensor of a value; `reader` may be null. Throws OpError.
TensorView ViewOf(const OrtApi& api, ShapeReader reader, const OrtValue* value);

/// One run of a node: its inputs and outputs, and onnxruntime's threads.
class KernelContext {
 public:
  /// Throws OpError.
  KernelContext(const OrtApi& api, ShapeReader reader, OrtKernelContext* context)
      : api_(api), reader_(reader), context_(context) {
    ThrowOnError(api_, api_.KernelContext_GetInputCount(context_, &inputs_));
  }

  /// The input at `index`; false if it is omitted, at the end or in the middle.
  TensorView Input(std::size_t index) const;

  /// Whether the input at `index`, which is present, has no elements: a fraction of the time of
  /// viewing it.
  bool IsEmpty(std::size_t index) const;

  /// Allocates output `index`.
  void* Output(std::size_t index, const Shape& shape) const;

  /// Allocates output `index`, or returns null if the model does not use it.
  void* OptionalOutput(std::size_t index, const Shape& shape) const;

  /// Calls `body(item)` for each item below `items`, on onnxruntime's threads; `body` must not
  /// throw. The order is unspecified.
  template <class Body>
  void ParallelFor(std::size_t items, const Body& body) const {
    if (items == 1) return body(0);
    if (items == 0) return;
    const auto call = [](void* data, std::size_t item) { (*static_cast<const Body*>(data))(item); };
    Run(call, items, const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  void Run(void (*function)(void*, std::size_t), std::size_t items, void* data) const;

  const OrtApi& api_;
  ShapeReader reader_;
  OrtKernelContext* context_;
  std::size_t inputs_ = 0;
};

}  // namespace coreai
