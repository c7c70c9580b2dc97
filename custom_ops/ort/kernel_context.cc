#include "ort/kernel_context.h"

#include <cstring>
#include <memory>

namespace coreai {

namespace {

std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(OrtApi::ReleaseTensorTypeAndShapeInfo)> InfoOf(
    const OrtApi& api, const OrtValue* value) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  ThrowOnError(api, api.GetTensorTypeAndShape(value, &info));
  return {info, api.ReleaseTensorTypeAndShapeInfo};
}

// Position of GetTensorElementTypeAndShapeDataReference in OrtApi, the last member of version 24.
// The headers that this library requires end before it; members never move.
constexpr std::size_t kReaderPosition = 414;
constexpr std::uint32_t kReaderVersion = 24;
#if ORT_API_VERSION >= 24
static_assert(offsetof(OrtApi, GetTensorElementTypeAndShapeDataReference) ==
              kReaderPosition * sizeof(void*));
#endif

}  // namespace

ShapeReader FindShapeReader(const OrtApiBase& base) {
  // Asking an older release for this version would print an error.
  if (!IsAtLeast(base, kReaderVersion)) return nullptr;
  const OrtApi* const api = base.GetApi(kReaderVersion);
  if (api == nullptr) return nullptr;
  ShapeReader reader = nullptr;
  std::memcpy(&reader, reinterpret_cast<const char*>(api) + kReaderPosition * sizeof(void*),
              sizeof(reader));
  return reader;
}

TensorView ViewOf(const OrtApi& api, ShapeReader reader, const OrtValue* value) {
  TensorView view;
  std::size_t rank = 0;
  if (reader != nullptr) {
    const std::int64_t* shape = nullptr;
    ThrowOnError(api, reader(value, &view.type, &shape, &rank));
    view.shape.assign(shape, shape + rank);
  } else {
    const auto info = InfoOf(api, value);
    ThrowOnError(api, api.GetTensorElementType(info.get(), &view.type));
    ThrowOnError(api, api.GetDimensionsCount(info.get(), &rank));
    view.shape.resize(rank);
    ThrowOnError(api, api.GetDimensions(info.get(), view.shape.data(), rank));
  }
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
  return value == nullptr ? TensorView() : ViewOf(api_, reader_, value);
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
