#include "ort/op.h"

#include <string>

namespace coreai {

void CheckVersion(const KernelInfo& info, const schema::Composite& composite) {
  const std::int64_t version = info.Int("version", composite.version);
  if (version < 1 || version > composite.version) {
    throw OpError(std::string(info.op()) + ": attribute version is " + std::to_string(version) +
                  "; these kernels know versions 1 to " + std::to_string(composite.version));
  }
}

ONNXTensorElementDataType OnnxType(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
    case DType::kBFloat16:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
    case DType::kFloat64:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE;
    default:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  }
}

}  // namespace coreai
