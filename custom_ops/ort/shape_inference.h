#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ort/error.h"

namespace coreai {

/// Dimensions known when a model is loaded: the element type and, per dim, a size, or -1 and
/// perhaps a name.
struct SymbolicShape {
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<std::int64_t> sizes;
  std::vector<std::string> names;

  std::size_t rank() const { return sizes.size(); }
};

/// Shapes of a node's inputs and outputs at load time.
class ShapeInference {
 public:
  ShapeInference(const OrtApi& api, OrtShapeInferContext* context) : api_(api), context_(context) {}

  /// Shape of an input. onnxruntime reports an unknown rank as rank 0.
  SymbolicShape Input(std::size_t index) const;

  /// Sets nothing if a dim is unknown and unnamed: onnxruntime would interpret its -1 as a size.
  /// onnxruntime infers the type itself.
  void SetOutput(std::size_t index, const SymbolicShape& shape) const;

 private:
  const OrtApi& api_;
  OrtShapeInferContext* context_;
};

}  // namespace coreai
