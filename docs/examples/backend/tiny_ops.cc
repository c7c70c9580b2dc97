// The runtime of the backend "tiny": one op for each part, which runs the program of the part.

#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

constexpr char kVersion[] = "1";

struct Tensor {
  std::vector<int64_t> shape;
  std::vector<float> data;
};

Tensor Run(const std::string& op, const Tensor& a, const Tensor& b) {
  if (op == "sin") {
    Tensor result = a;
    for (float& x : result.data) x = std::sin(x);
    return result;
  }
  if (op == "add") {
    if (a.shape != b.shape) throw Ort::Exception("add: two shapes", ORT_INVALID_ARGUMENT);
    Tensor result = a;
    for (size_t i = 0; i < result.data.size(); ++i) result.data[i] += b.data[i];
    return result;
  }
  if (op != "mm") throw Ort::Exception("unknown operator " + op, ORT_INVALID_ARGUMENT);
  const int64_t rows = a.shape[0], inner = a.shape[1], columns = b.shape[1];
  Tensor result{{rows, columns}, std::vector<float>(rows * columns)};
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t k = 0; k < inner; ++k)
      for (int64_t j = 0; j < columns; ++j)
        result.data[i * columns + j] += a.data[i * inner + k] * b.data[k * columns + j];
  return result;
}

// A part of a model. Its program is read once, when the model is loaded.
class Part {
 public:
  explicit Part(Ort::ConstKernelInfo info) : inputs_(info.GetInputCount() - 1) {
    const auto version = info.GetAttribute<std::string>("backend_version");
    if (version != kVersion)
      throw Ort::Exception(
          "the bytes are of version " + version + ", this library runs version " + kVersion,
          ORT_INVALID_ARGUMENT);
    int constant = 0;
    const auto bytes = info.GetTensorConstantInput(inputs_, &constant);
    if (!constant) throw Ort::Exception("the bytes are not constant", ORT_INVALID_ARGUMENT);
    std::istringstream lines(std::string(bytes.GetTensorData<char>(),
                                         bytes.GetTensorTypeAndShapeInfo().GetElementCount()));
    for (std::string line; std::getline(lines, line);) program_.push_back(line);
  }

  OrtStatusPtr ComputeV2(OrtKernelContext* raw) {
    try {
      Ort::KernelContext context(raw);
      std::vector<Tensor> values;
      for (size_t i = 0; i < inputs_; ++i) {
        const auto input = context.GetInput(i);
        const auto info = input.GetTensorTypeAndShapeInfo();
        const float* data = input.GetTensorData<float>();
        values.push_back({info.GetShape(), {data, data + info.GetElementCount()}});
      }
      size_t outputs = 0;
      for (const std::string& line : program_) {
        std::istringstream words(line);
        std::string op;
        size_t a = 0, b = 0;
        words >> op >> a >> b;
        if (op == "return") {
          const Tensor& result = values.at(a);
          auto output = context.GetOutput(outputs++, result.shape);
          std::copy(result.data.begin(), result.data.end(), output.GetTensorMutableData<float>());
        } else {
          values.push_back(Run(op, values.at(a), values.at(b)));
        }
      }
      return nullptr;
    } catch (const std::exception& error) {
      return Ort::Status(error.what(), ORT_FAIL).release();
    }
  }

 private:
  size_t inputs_;
  std::vector<std::string> program_;
};

struct PartOp : Ort::CustomOpBase<PartOp, Part, /*WithStatus=*/true> {
  explicit PartOp(std::string op_name) : name(std::move(op_name)) {}

  OrtStatusPtr CreateKernelV2(const OrtApi&, const OrtKernelInfo* info, void** kernel) const {
    try {
      *kernel = new Part(Ort::ConstKernelInfo(info));
      return nullptr;
    } catch (const std::exception& error) {
      return Ort::Status(("tiny::" + name + ": " + error.what()).c_str(), ORT_FAIL).release();
    }
  }

  const char* GetName() const { return name.c_str(); }
  size_t GetInputTypeCount() const { return 1; }
  size_t GetOutputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetInputType(size_t) const {
    return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;  // float32, and the bytes
  }
  ONNXTensorElementDataType GetOutputType(size_t) const {
    return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  }
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(size_t) const {
    return INPUT_OUTPUT_VARIADIC;
  }
  OrtCustomOpInputOutputCharacteristic GetOutputCharacteristic(size_t) const {
    return INPUT_OUTPUT_VARIADIC;
  }
  bool GetVariadicInputHomogeneity() const { return false; }

  std::string name;
};

// The names of the parts: those that coreai_onnx.session lists, or else the first 64.
std::vector<std::string> Names(Ort::UnownedSessionOptions options) {
  std::vector<std::string> names;
  if (options.HasConfigEntry("coreai.parts.tiny")) {
    std::istringstream list(options.GetConfigEntry("coreai.parts.tiny"));
    for (std::string name; std::getline(list, name, ',');) names.push_back(name);
  } else {
    for (int i = 0; i < 64; ++i) names.push_back("part_" + std::to_string(i));
  }
  return names;
}

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(
    OrtSessionOptions* raw, const OrtApiBase* base) {
  Ort::InitApi(base->GetApi(ORT_API_VERSION));
  try {
    Ort::UnownedSessionOptions options(raw);
    // onnxruntime keeps pointers to domains and ops: they are never destroyed.
    auto& domain = *new Ort::CustomOpDomain("tiny");
    for (const std::string& name : Names(options)) domain.Add(new PartOp(name));
    options.Add(domain);
    return nullptr;
  } catch (const std::exception& error) {
    return Ort::Status(error.what(), ORT_FAIL).release();
  }
}
