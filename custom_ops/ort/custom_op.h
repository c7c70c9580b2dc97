#pragma once

#include <string>

#include "ort/op.h"

namespace coreai {

/// The custom op for one (op type, dtype, dtype of its state). The base is the C API's table of
/// functions.
struct CustomOp : OrtCustomOp {
  CustomOp(const OrtApi& ort_api, ShapeReader shape_reader, const OpDefinition& op,
           const std::string& type_name, DType element, DType state_element, Target kernels,
           const KernelOptions& of_session);

  const OrtApi& api;
  ShapeReader reader;
  const OpDefinition& definition;
  std::string op_type;
  DType dtype;
  DType state_dtype;  ///< of the definition's state, if it has one
  Target target;
  KernelOptions options;
};

}  // namespace coreai
