#pragma once

// A stand-in for onnxruntime: the functions of its C API that the kernels call, over plain C++
// objects. It makes a call of a kernel cost microseconds, and gives every tensor an allocation of
// its own that ends where the tensor ends.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "onnxruntime_c_api.h"

struct OrtStatus {
  OrtErrorCode code;
  std::string message;
};

struct OrtTensorTypeAndShapeInfo {
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<std::int64_t> shape;
};

/// A tensor, `shift` elements after an aligned address.
struct OrtValue {
  OrtTensorTypeAndShapeInfo info;
  std::size_t shift = 0;
  std::vector<char> memory;  // exactly as long as the tensor and the shift

  char* data() { return memory.data() + shift; }
  std::size_t bytes() const { return memory.size() - shift; }
};

/// Attributes of a node. What is asked for and not yet there is made up by `invent`.
struct OrtKernelInfo {
  using Attribute =
      std::variant<std::monostate, std::int64_t, float, std::string, std::vector<std::int64_t>>;
  mutable std::map<std::string, Attribute> attributes;
  std::function<Attribute(const std::string& name)> invent;
  std::vector<const OrtValue*> constants;  ///< by input; null: known only when the node runs

  const Attribute& Get(const char* name) const;
};

struct OrtKernelContext {
  std::vector<std::shared_ptr<OrtValue>> inputs;  ///< null: left out; of several contexts at once
  std::vector<ONNXTensorElementDataType> output_types;
  std::vector<bool> output_used;
  std::vector<std::shared_ptr<OrtValue>> outputs;
  std::size_t threads = 1;  ///< that ParallelFor runs on
  bool in_place = false;    ///< the first output gets the memory of the first input
};

struct OrtShapeInferContext {
  std::vector<OrtTensorTypeAndShapeInfo> inputs;
  std::vector<OrtTensorTypeAndShapeInfo> outputs;
};

struct OrtCustomOpDomain {
  std::vector<const OrtCustomOp*> ops;
};

struct OrtSessionOptions {
  std::vector<OrtCustomOpDomain*> domains;
  bool deterministic = false;  ///< whether the entry coreai.deterministic is "1"
};

namespace coreai::fuzz {

/// Bytes of one element of the types that the kernels know.
std::size_t ElementBytes(ONNXTensorElementDataType type);

/// What this onnxruntime says of outputs that are too large, in the place of the kernel.
inline constexpr char kNoMemory[] = "failed to allocate the output";

/// Whether a tensor of this shape is small enough to be made: sizes beside a 0 may be anything.
bool FitsMemory(const std::vector<std::int64_t>& shape);

/// A tensor whose bytes are 0xA5.
std::unique_ptr<OrtValue> MakeValue(ONNXTensorElementDataType type, std::vector<std::int64_t> shape,
                                    std::size_t shift);

/// What RegisterCustomOps is called with.
const OrtApiBase* FakeApiBase();
const OrtApi& FakeApi();

}  // namespace coreai::fuzz
