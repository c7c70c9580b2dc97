#include "ort/kernel_context.h"

#include <memory>

namespace coreai {

TensorView ViewOf(const OrtApi& api, const OrtValue* value) {
  TensorView view;
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  ThrowOnError(api, api.GetTensorTypeAndShape(value, &raw));
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(api.ReleaseTensorTypeAndShapeInfo)>
      info(raw, api.ReleaseTensorTypeAndShapeInfo);
  std::size_t rank = 0;
  ThrowOnError(api, api.GetTensorElementType(info.get(), &view.type));
  ThrowOnError(api, api.GetDimensionsCount(info.get(), &rank));
  view.shape.resize(rank);
  ThrowOnError(api, api.GetDimensions(info.get(), view.shape.data(), rank));
  void* data = nullptr;
  // The C API has one accessor for reading and writing; an input is only ever read.
  ThrowOnError(api, api.GetTensorMutableData(const_cast<OrtValue*>(value), &data));
  view.data = data;
  view.present = true;
  return view;
}

TensorView KernelContext::Input(std::size_t index) const {
  if (index >= inputs_) return {};
  const OrtValue* value = nullptr;
  ThrowOnError(api_, api_.KernelContext_GetInput(context_, index, &value));
  return value == nullptr ? TensorView() : ViewOf(api_, value);
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
