#pragma once

#include <cstddef>
#include <cstdint>

#include "onnxruntime_c_api.h"

namespace coreai {

/// Whether an element type is one of the four floating-point types.
bool IsFloating(ONNXTensorElementDataType type);

/// Whether an element type is int32 or int64.
bool IsIndex(ONNXTensorElementDataType type);

/// The ONNX name of an element type: "float", "bfloat16", "bool".
const char* TypeName(ONNXTensorElementDataType type);

/// Element `index` of a floating-point tensor, exactly.
double ReadFloating(ONNXTensorElementDataType type, const void* data, std::size_t index);

/// Element `index` of a tensor of int32 or int64.
std::int64_t ReadIndex(ONNXTensorElementDataType type, const void* data, std::size_t index);

}  // namespace coreai
