#include "ort/kernel_context.h"

#include <memory>

namespace coreai {

TensorView KernelContext::Input(std::size_t index) const {
  TensorView view;
  std::size_t count = 0;
  ThrowOnError(api_, api_.KernelContext_GetInputCount(context_, &count));
  if (index >= count) return view;
  const OrtValue* value = nullptr;
  ThrowOnError(api_, api_.KernelContext_GetInput(context_, index, &value));
  if (value == nullptr) return view;

  OrtTensorTypeAndShapeInfo* raw = nullptr;
  ThrowOnError(api_, api_.GetTensorTypeAndShape(value, &raw));
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(api_.ReleaseTensorTypeAndShapeInfo)>
      info(raw, api_.ReleaseTensorTypeAndShapeInfo);
  std::size_t rank = 0;
  ThrowOnError(api_, api_.GetTensorElementType(info.get(), &view.type));
  ThrowOnError(api_, api_.GetDimensionsCount(info.get(), &rank));
  view.shape.resize(rank);
  ThrowOnError(api_, api_.GetDimensions(info.get(), view.shape.data(), rank));
  void* data = nullptr;
  // The C API has one accessor for reading and writing; an input is only ever read.
  ThrowOnError(api_, api_.GetTensorMutableData(const_cast<OrtValue*>(value), &data));
  view.data = data;
  view.present = true;
  return view;
}

void* KernelContext::Output(std::size_t index, const Shape& shape) const {
  OrtValue* value = nullptr;
  ThrowOnError(api_,
               api_.KernelContext_GetOutput(context_, index, shape.data(), shape.size(), &value));
  void* data = nullptr;
  ThrowOnError(api_, api_.GetTensorMutableData(value, &data));
  return data;
}

void* KernelContext::OptionalOutput(std::size_t index, const Shape& shape) const {
  std::size_t count = 0;
  ThrowOnError(api_, api_.KernelContext_GetOutputCount(context_, &count));
  if (index >= count) return nullptr;
  OrtValue* value = nullptr;
  ThrowOnError(api_,
               api_.KernelContext_GetOutput(context_, index, shape.data(), shape.size(), &value));
  if (value == nullptr) return nullptr;
  void* data = nullptr;
  ThrowOnError(api_, api_.GetTensorMutableData(value, &data));
  return data;
}

void KernelContext::Run(void (*function)(void*, std::size_t), std::size_t items, void* data) const {
  ThrowOnError(api_, api_.KernelContext_ParallelFor(context_, function, items, 0, data));
}

}  // namespace coreai
