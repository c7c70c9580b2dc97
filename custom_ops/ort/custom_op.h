#pragma once

#include "ops/op.h"

namespace coreai {

/// One (op type, dtype) as onnxruntime sees it. The base is the C API's table of functions.
struct CustomOp : OrtCustomOp {
  CustomOp(const OrtApi& ort_api, const OpDefinition& op, const char* type_name, DType element,
           Target kernels);

  const OrtApi& api;
  const OpDefinition& definition;
  const char* op_type;
  DType dtype;
  Target target;
};

}  // namespace coreai
