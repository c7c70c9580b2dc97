#include "ort/shape_inference.h"

#include <memory>

namespace coreai {

SymbolicShape ShapeInference::Input(std::size_t index) const {
  SymbolicShape shape;
  std::size_t rank = 0;
  OrtTensorTypeAndShapeInfo* info = nullptr;  // owned by the context
  ThrowOnError(api_, api_.ShapeInferContext_GetInputTypeShape(context_, index, &info));
  ThrowOnError(api_, api_.GetTensorElementType(info, &shape.type));
  ThrowOnError(api_, api_.GetDimensionsCount(info, &rank));
  shape.sizes.resize(rank);
  std::vector<const char*> names(rank, nullptr);
  ThrowOnError(api_, api_.GetDimensions(info, shape.sizes.data(), rank));
  ThrowOnError(api_, api_.GetSymbolicDimensions(info, names.data(), rank));
  for (const char* name : names) shape.names.emplace_back(name == nullptr ? "" : name);
  return shape;
}

void ShapeInference::SetOutput(std::size_t index, const SymbolicShape& shape) const {
  for (std::size_t i = 0; i < shape.rank(); ++i) {
    if (shape.sizes[i] < 0 && shape.names[i].empty()) return;
  }
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  ThrowOnError(api_, api_.CreateTensorTypeAndShapeInfo(&raw));
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(api_.ReleaseTensorTypeAndShapeInfo)>
      info(raw, api_.ReleaseTensorTypeAndShapeInfo);
  std::vector<const char*> pointers;
  for (const std::string& name : shape.names) pointers.push_back(name.c_str());
  ThrowOnError(api_, api_.SetTensorElementType(info.get(), shape.type));
  ThrowOnError(api_, api_.SetDimensions(info.get(), shape.sizes.data(), shape.rank()));
  ThrowOnError(api_, api_.SetSymbolicDimensions(info.get(), pointers.data(), pointers.size()));
  ThrowOnError(api_, api_.ShapeInferContext_SetOutputTypeShape(context_, index, info.get()));
}

}  // namespace coreai
