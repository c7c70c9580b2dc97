#include "ort/kernel_context.h"

#include <memory>

namespace coreai {

namespace {

std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(OrtApi::ReleaseTensorTypeAndShapeInfo)> InfoOf(
    const OrtApi& api, const OrtValue* value) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  ThrowOnError(api, api.GetTensorTypeAndShape(value, &info));
  return {info, api.ReleaseTensorTypeAndShapeInfo};
}

}  // namespace

TensorView ViewOf(const OrtApi& api, const OrtValue* value) {
  TensorView view;
  const auto info = InfoOf(api, value);
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

bool KernelContext::IsEmpty(std::size_t index) const {
  const OrtValue* value = nullptr;
  ThrowOnError(api_, api_.KernelContext_GetInput(context_, index, &value));
  std::size_t count = 0;
  ThrowOnError(api_, api_.GetTensorShapeElementCount(InfoOf(api_, value).get(), &count));
  return count == 0;
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
