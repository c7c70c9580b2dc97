// Operators of a user's own runtime library, as onnxruntime's documentation writes them.
#define ORT_API_MANUAL_INIT
#include "onnxruntime_lite_custom_op.h"
#undef ORT_API_MANUAL_INIT

namespace {

struct Scale {
  Scale(const OrtApi* api, const OrtKernelInfo* info) {
    Ort::ThrowOnError(api->KernelInfoGetAttribute_float(info, "factor", &factor));
  }
  void Compute(const Ort::Custom::Tensor<float>& x, Ort::Custom::Tensor<float>& y) {
    float* out = y.Allocate(x.Shape());
    for (int64_t i = 0; i < x.NumberOfElement(); ++i) out[i] = x.Data()[i] * factor;
  }
  float factor = 0;
};

// The elements that are not zero, and their number.
void NonZeros(const Ort::Custom::Tensor<float>& x, Ort::Custom::Tensor<float>& kept,
              Ort::Custom::Tensor<int64_t>& count) {
  int64_t found = 0;
  for (int64_t i = 0; i < x.NumberOfElement(); ++i) found += x.Data()[i] != 0;
  *count.Allocate({}) = found;
  float* out = kept.Allocate({found});
  for (int64_t i = 0; i < x.NumberOfElement(); ++i) {
    if (x.Data()[i] != 0) *out++ = x.Data()[i];
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(
    OrtSessionOptions* options, const OrtApiBase* base) {
  Ort::Global<void>::api_ = base->GetApi(ORT_API_VERSION);
  static const std::unique_ptr<Ort::Custom::OrtLiteCustomOp> ops[] = {
      std::unique_ptr<Ort::Custom::OrtLiteCustomOp>(
          Ort::Custom::CreateLiteCustomOp<Scale>("Scale", "CPUExecutionProvider")),
      std::unique_ptr<Ort::Custom::OrtLiteCustomOp>(
          Ort::Custom::CreateLiteCustomOp("NonZeros", "CPUExecutionProvider", NonZeros))};
  static Ort::CustomOpDomain domain = [] {
    Ort::CustomOpDomain made("my.ops");
    for (const auto& op : ops) made.Add(op.get());
    return made;
  }();
  return Ort::GetApi().AddCustomOpDomain(options, domain);
}
