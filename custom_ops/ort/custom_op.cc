#include "ort/custom_op.h"

#include <limits>

namespace coreai {
namespace {

const CustomOp& Self(const OrtCustomOp* op) { return *static_cast<const CustomOp*>(op); }

// The kernel object that CreateKernelV2 returns to onnxruntime.
struct Kernel {
  const OrtApi& api;
  ShapeReader reader;
  const char* op_type;
  std::unique_ptr<Op> op;
};

const char* GetName(const OrtCustomOp* op) { return Self(op).op_type.c_str(); }
const char* GetProvider(const OrtCustomOp*) { return nullptr; }

ONNXTensorElementDataType GetInputType(const OrtCustomOp* op, std::size_t index) {
  if (index == Self(op).definition.state_input) return OnnxType(Self(op).state_dtype);
  const schema::Input& input = Self(op).definition.composite.inputs[index];
  return input.kind == schema::InputKind::kT ? OnnxType(Self(op).dtype)
                                             : ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
}

std::size_t GetInputCount(const OrtCustomOp* op) {
  return Self(op).definition.composite.input_count;
}

OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(const OrtCustomOp* op,
                                                            std::size_t index) {
  return Self(op).definition.composite.inputs[index].optional ? INPUT_OUTPUT_OPTIONAL
                                                              : INPUT_OUTPUT_REQUIRED;
}

ONNXTensorElementDataType GetOutputType(const OrtCustomOp* op, std::size_t index) {
  const CustomOp& self = Self(op);
  return OnnxType(index == self.definition.state_output ? self.state_dtype : self.dtype);
}

std::size_t GetOutputCount(const OrtCustomOp* op) {
  return Self(op).definition.composite.output_count;
}

// Only the first output is required.
OrtCustomOpInputOutputCharacteristic GetOutputCharacteristic(const OrtCustomOp*,
                                                             std::size_t index) {
  return index == 0 ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
}

// onnxruntime does not pass the op, so that all in-place ops return the same answer. onnxruntime
// only reads it. Nothing is allocated, since this function cannot report an error.
std::size_t GetFirstInPlace(int** input, int** output) {
  static int first = 0;
  *input = *output = &first;
  return 1;
}

void ReleaseInPlace(int*, int*) {}

OrtMemType GetInputMemoryType(const OrtCustomOp*, std::size_t) { return OrtMemTypeDefault; }

OrtStatus* CreateKernel(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                        void** kernel) {
  *kernel = nullptr;
  const CustomOp& self = Self(op);
  const char* const op_type = self.op_type.c_str();
  return StatusOf(*api, op_type, [&] {
    const KernelInfo attributes(*api, info, op_type, self.options);
    CheckVersion(attributes, self.definition.composite);
    *kernel = new Kernel{*api, self.reader, op_type,
                         self.definition.create(attributes, self.dtype, self.target)};
  });
}

OrtStatus* Compute(void* kernel, OrtKernelContext* context) {
  const auto& self = *static_cast<const Kernel*>(kernel);
  return StatusOf(self.api, self.op_type,
                  [&] { self.op->Compute(KernelContext(self.api, self.reader, context)); });
}

void DestroyKernel(void* kernel) { delete static_cast<Kernel*>(kernel); }

OrtStatus* InferShape(const OrtCustomOp* op, OrtShapeInferContext* context) {
  const CustomOp& self = Self(op);
  return StatusOf(self.api, self.op_type.c_str(),
                  [&] { self.definition.infer_shape(ShapeInference(self.api, context)); });
}

int FirstVersion(const OrtCustomOp*) { return 1; }
int LastVersion(const OrtCustomOp*) { return std::numeric_limits<int>::max(); }
int NoArity(const OrtCustomOp*) { return 0; }

}  // namespace

CustomOp::CustomOp(const OrtApi& ort_api, ShapeReader shape_reader, const OpDefinition& op,
                   const std::string& type_name, DType element, DType state_element, Target kernels,
                   const KernelOptions& of_session)
    : OrtCustomOp{},
      api(ort_api),
      reader(shape_reader),
      definition(op),
      op_type(type_name),
      dtype(element),
      state_dtype(state_element),
      target(kernels),
      options(of_session) {
  version = kOrtApiVersion;
  OrtCustomOp::GetName = coreai::GetName;
  GetExecutionProviderType = GetProvider;
  OrtCustomOp::GetInputType = coreai::GetInputType;
  GetInputTypeCount = GetInputCount;
  OrtCustomOp::GetOutputType = coreai::GetOutputType;
  GetOutputTypeCount = GetOutputCount;
  KernelDestroy = DestroyKernel;
  OrtCustomOp::GetInputCharacteristic = coreai::GetInputCharacteristic;
  OrtCustomOp::GetOutputCharacteristic = coreai::GetOutputCharacteristic;
  OrtCustomOp::GetInputMemoryType = coreai::GetInputMemoryType;
  GetVariadicInputMinArity = NoArity;
  GetVariadicInputHomogeneity = NoArity;
  GetVariadicOutputMinArity = NoArity;
  GetVariadicOutputHomogeneity = NoArity;
  CreateKernelV2 = coreai::CreateKernel;
  KernelComputeV2 = Compute;
  InferOutputShapeFn = InferShape;
  if (op.in_place) {
    GetMayInplace = GetFirstInPlace;
    ReleaseMayInplace = ReleaseInPlace;
  }
  GetStartVersion = FirstVersion;
  GetEndVersion = LastVersion;
}

}  // namespace coreai
