#include "fuzz/fake_ort.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "fuzz/starve.h"

using coreai::fuzz::Party;
using coreai::fuzz::Running;

const OrtKernelInfo::Attribute& OrtKernelInfo::Get(const char* name) const {
  const Running fuzzer(Party::kFuzzer);
  const auto found = attributes.find(name);
  return found != attributes.end() ? found->second
                                   : attributes.emplace(name, invent(name)).first->second;
}

namespace coreai::fuzz {
namespace {

OrtStatus* Fail(const char* message) {
  const Running fuzzer(Party::kFuzzer);
  return new OrtStatus{ORT_FAIL, message};
}

// ── statuses ──
OrtStatus* CreateStatus(OrtErrorCode code, const char* message) noexcept {
  const Running fuzzer(Party::kFuzzer);
  return new OrtStatus{code, message};
}
void ReleaseStatus(OrtStatus* status) { delete status; }
OrtErrorCode GetErrorCode(const OrtStatus* status) noexcept { return status->code; }
const char* GetErrorMessage(const OrtStatus* status) noexcept { return status->message.c_str(); }

// ── registration ──
OrtStatus* CreateCustomOpDomain(const char*, OrtCustomOpDomain** out) noexcept {
  *out = new OrtCustomOpDomain;
  return nullptr;
}
OrtStatus* DomainAdd(OrtCustomOpDomain* domain, const OrtCustomOp* op) noexcept {
  domain->ops.push_back(op);
  return nullptr;
}
OrtStatus* AddCustomOpDomain(OrtSessionOptions* options, OrtCustomOpDomain* domain) noexcept {
  options->domains.push_back(domain);
  return nullptr;
}
OrtStatus* HasSessionConfigEntry(const OrtSessionOptions* options, const char* key,
                                 int* out) noexcept {
  *out = options->deterministic && std::strcmp(key, "coreai.deterministic") == 0 ? 1 : 0;
  return nullptr;
}
OrtStatus* CopyText(const std::string& text, char* out, std::size_t* size) {
  const std::size_t needed = text.size() + 1;
  if (out != nullptr && *size < needed) return Fail("buffer too small");
  if (out != nullptr) std::memcpy(out, text.c_str(), needed);
  *size = needed;
  return nullptr;
}
OrtStatus* GetSessionConfigEntry(const OrtSessionOptions*, const char*, char* value,
                                 std::size_t* size) noexcept {
  return CopyText("1", value, size);
}

// ── attributes ──
template <typename E>
OrtStatus* GetAttribute(const OrtKernelInfo* info, const char* name, E* out) {
  const auto* value = std::get_if<E>(&info->Get(name));
  if (value == nullptr) return Fail("no such attribute");
  *out = *value;
  return nullptr;
}
OrtStatus* GetFloat(const OrtKernelInfo* info, const char* name, float* out) noexcept {
  return GetAttribute(info, name, out);
}
OrtStatus* GetInt(const OrtKernelInfo* info, const char* name, std::int64_t* out) noexcept {
  return GetAttribute(info, name, out);
}
OrtStatus* GetString(const OrtKernelInfo* info, const char* name, char* out,
                     std::size_t* size) noexcept {
  const auto* value = std::get_if<std::string>(&info->Get(name));
  return value == nullptr ? Fail("no such attribute") : CopyText(*value, out, size);
}
// onnxruntime's reader of lists succeeds, with no elements, for an attribute of another type.
OrtStatus* GetInts(const OrtKernelInfo* info, const char* name, std::int64_t* out,
                   std::size_t* size) noexcept {
  const auto& attribute = info->Get(name);
  if (std::holds_alternative<std::monostate>(attribute)) return Fail("no such attribute");
  const auto* value = std::get_if<std::vector<std::int64_t>>(&attribute);
  const std::size_t count = value == nullptr ? 0 : value->size();
  if (out != nullptr && *size < count) return Fail("buffer too small");
  if (out != nullptr && count != 0) std::copy(value->begin(), value->end(), out);
  *size = count;
  return nullptr;
}

OrtStatus* GetConstantInput(const OrtKernelInfo* info, std::size_t index, int* is_constant,
                            const OrtValue** out) noexcept {
  *out = index < info->constants.size() ? info->constants[index] : nullptr;
  *is_constant = *out == nullptr ? 0 : 1;
  return nullptr;
}

// ── tensors ──
OrtStatus* GetTensorTypeAndShape(const OrtValue* value, OrtTensorTypeAndShapeInfo** out) noexcept {
  const Running fuzzer(Party::kFuzzer);
  *out = new OrtTensorTypeAndShapeInfo(value->info);
  return nullptr;
}
OrtStatus* CreateTensorTypeAndShapeInfo(OrtTensorTypeAndShapeInfo** out) noexcept {
  *out = new OrtTensorTypeAndShapeInfo;
  return nullptr;
}
void ReleaseTensorTypeAndShapeInfo(OrtTensorTypeAndShapeInfo* info) { delete info; }
OrtStatus* GetTensorElementType(const OrtTensorTypeAndShapeInfo* info,
                                ONNXTensorElementDataType* out) noexcept {
  *out = info->type;
  return nullptr;
}
OrtStatus* SetTensorElementType(OrtTensorTypeAndShapeInfo* info,
                                ONNXTensorElementDataType type) noexcept {
  info->type = type;
  return nullptr;
}
OrtStatus* GetElementCount(const OrtTensorTypeAndShapeInfo* info, std::size_t* out) noexcept {
  *out = 1;
  // Sizes beside a 0 may be huge: their product is not formed.
  for (const std::int64_t size : info->shape) {
    if (size == 0) *out = 0;
  }
  for (const std::int64_t size : info->shape)
    *out *= *out == 0 ? 1 : static_cast<std::size_t>(size);
  return nullptr;
}
OrtStatus* GetDimensionsCount(const OrtTensorTypeAndShapeInfo* info, std::size_t* out) noexcept {
  *out = info->shape.size();
  return nullptr;
}
OrtStatus* GetDimensions(const OrtTensorTypeAndShapeInfo* info, std::int64_t* out,
                         std::size_t count) noexcept {
  if (count != info->shape.size()) return Fail("wrong rank");
  std::copy(info->shape.begin(), info->shape.end(), out);
  return nullptr;
}
OrtStatus* SetDimensions(OrtTensorTypeAndShapeInfo* info, const std::int64_t* sizes,
                         std::size_t count) noexcept {
  info->shape.assign(sizes, sizes + count);
  return nullptr;
}
OrtStatus* GetSymbolicDimensions(const OrtTensorTypeAndShapeInfo* info, const char* names[],
                                 std::size_t count) noexcept {
  if (count != info->shape.size()) return Fail("wrong rank");
  std::fill_n(names, count, "dim");
  return nullptr;
}
OrtStatus* SetSymbolicDimensions(OrtTensorTypeAndShapeInfo* info, const char* names[],
                                 std::size_t count) noexcept {
  std::size_t length = 0;
  for (std::size_t i = 0; i < count; ++i) length += std::strlen(names[i]);
  return count == info->shape.size() && length < 10000 ? nullptr : Fail("wrong rank");
}
OrtStatus* GetTensorMutableData(OrtValue* value, void** out) noexcept {
  *out = value->data();
  return nullptr;
}

// ── one run of a node ──
OrtStatus* GetInputCount(const OrtKernelContext* context, std::size_t* out) noexcept {
  *out = context->inputs.size();
  return nullptr;
}
OrtStatus* GetOutputCount(const OrtKernelContext* context, std::size_t* out) noexcept {
  *out = context->output_types.size();
  return nullptr;
}
OrtStatus* GetInput(const OrtKernelContext* context, std::size_t index,
                    const OrtValue** out) noexcept {
  if (index >= context->inputs.size()) return Fail("no such input");
  *out = context->inputs[index].get();
  return nullptr;
}
OrtStatus* GetOutput(OrtKernelContext* context, std::size_t index, const std::int64_t* sizes,
                     std::size_t rank, OrtValue** out) noexcept {
  const Running fuzzer(Party::kFuzzer);
  if (index >= context->output_types.size()) return Fail("no such output");
  context->outputs.resize(context->output_types.size());
  const std::vector<std::int64_t> shape(sizes, sizes + rank);
  // What is not used is not allocated, whatever its size.
  if (context->output_used[index] && !FitsMemory(shape)) return Fail(kNoMemory);
  if (context->in_place && index == 0) {
    context->outputs[0] = context->inputs.at(0);
  } else if (context->output_used[index]) {
    context->outputs[index] = MakeValue(context->output_types[index], shape, index % 3);
  }
  *out = context->outputs[index].get();
  return nullptr;
}
OrtStatus* ParallelFor(const OrtKernelContext* context, void (*function)(void*, std::size_t),
                       std::size_t total, std::size_t, void* data) noexcept {
  const Running fuzzer(Party::kFuzzer);
  std::atomic<std::size_t> next{0};
  // Relaxed, so that the thread checker sees items that depend on one another.
  const auto take = [&] { return next.fetch_add(1, std::memory_order_relaxed); };
  const auto work = [&] {
    const Running item(Party::kItem);
    for (std::size_t i = take(); i < total; i = take()) function(data, i);
  };
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < std::min(context->threads, total); ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  return nullptr;
}

// ── shapes when a model is loaded ──
OrtStatus* GetInputTypeShape(const OrtShapeInferContext* context, std::size_t index,
                             OrtTensorTypeAndShapeInfo** out) noexcept {
  static OrtTensorTypeAndShapeInfo unknown;
  const auto& inputs = context->inputs;
  *out = index < inputs.size() ? const_cast<OrtTensorTypeAndShapeInfo*>(&inputs[index]) : &unknown;
  return nullptr;
}
OrtStatus* SetOutputTypeShape(const OrtShapeInferContext* context, std::size_t index,
                              const OrtTensorTypeAndShapeInfo* info) noexcept {
  auto& outputs = const_cast<OrtShapeInferContext*>(context)->outputs;
  if (index >= outputs.size()) return Fail("no such output");
  outputs[index] = *info;
  return nullptr;
}

OrtApi MakeApi() {
  OrtApi api = {};  // what is not here must not be called
  api.CreateStatus = CreateStatus;
  api.ReleaseStatus = ReleaseStatus;
  api.GetErrorCode = GetErrorCode;
  api.GetErrorMessage = GetErrorMessage;
  api.CreateCustomOpDomain = CreateCustomOpDomain;
  api.CustomOpDomain_Add = DomainAdd;
  api.AddCustomOpDomain = AddCustomOpDomain;
  api.HasSessionConfigEntry = HasSessionConfigEntry;
  api.GetSessionConfigEntry = GetSessionConfigEntry;
  api.KernelInfoGetAttribute_float = GetFloat;
  api.KernelInfoGetAttribute_int64 = GetInt;
  api.KernelInfoGetAttribute_string = GetString;
  api.KernelInfoGetAttributeArray_int64 = GetInts;
  api.KernelInfoGetConstantInput_tensor = GetConstantInput;
  api.GetTensorTypeAndShape = GetTensorTypeAndShape;
  api.CreateTensorTypeAndShapeInfo = CreateTensorTypeAndShapeInfo;
  api.ReleaseTensorTypeAndShapeInfo = ReleaseTensorTypeAndShapeInfo;
  api.GetTensorElementType = GetTensorElementType;
  api.SetTensorElementType = SetTensorElementType;
  api.GetTensorShapeElementCount = GetElementCount;
  api.GetDimensionsCount = GetDimensionsCount;
  api.GetDimensions = GetDimensions;
  api.SetDimensions = SetDimensions;
  api.GetSymbolicDimensions = GetSymbolicDimensions;
  api.SetSymbolicDimensions = SetSymbolicDimensions;
  api.GetTensorMutableData = GetTensorMutableData;
  api.KernelContext_GetInputCount = GetInputCount;
  api.KernelContext_GetOutputCount = GetOutputCount;
  api.KernelContext_GetInput = GetInput;
  api.KernelContext_GetOutput = GetOutput;
  api.KernelContext_ParallelFor = ParallelFor;
  api.ShapeInferContext_GetInputTypeShape = GetInputTypeShape;
  api.ShapeInferContext_SetOutputTypeShape = SetOutputTypeShape;
  return api;
}

const OrtApi* GetApi(std::uint32_t version) noexcept {
  return version <= ORT_API_VERSION ? &FakeApi() : nullptr;
}
const char* GetVersion() noexcept { return "1.28.0"; }

}  // namespace

std::size_t ElementBytes(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
      return 8;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
      return 4;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      return 2;
    default:
      return 1;
  }
}

bool FitsMemory(const std::vector<std::int64_t>& shape) {
  constexpr std::int64_t kMostElements = 1 << 24;
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) {
    if (size == 0) return true;
    if (size < 0 || elements > kMostElements / size) elements = kMostElements + 1;
    elements *= elements > kMostElements ? 1 : size;
  }
  return elements <= kMostElements;
}

std::unique_ptr<OrtValue> MakeValue(ONNXTensorElementDataType type, std::vector<std::int64_t> shape,
                                    std::size_t shift) {
  std::size_t bytes = ElementBytes(type);
  for (const std::int64_t size : shape) bytes *= static_cast<std::size_t>(size);
  auto value = std::make_unique<OrtValue>();
  value->info = {type, std::move(shape)};
  value->shift = shift * ElementBytes(type);
  value->memory.assign(value->shift + bytes, static_cast<char>(0xA5));
  value->memory.shrink_to_fit();
  return value;
}

const OrtApi& FakeApi() {
  static const OrtApi api = MakeApi();
  return api;
}

const OrtApiBase* FakeApiBase() {
  static const OrtApiBase base = {GetApi, GetVersion};
  return &base;
}

}  // namespace coreai::fuzz
