// Run encoder.onnx: run_encoder MODEL [KERNEL_LIBRARY]
#include <onnxruntime_cxx_api.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <numeric>
#include <vector>

namespace {

void Run(const char* model, const char* library) {
  const Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "run_encoder");
  Ort::SessionOptions options;
  if (library != nullptr) options.RegisterCustomOpsLibrary(library);
  Ort::Session session(env, model, options);

  const std::vector<int64_t> shape{2, 7, 64};
  std::vector<float> values(2 * 7 * 64);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(std::sin(static_cast<double>(i) * 0.01));
  }
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  const auto batch = Ort::Value::CreateTensor<float>(memory, values.data(), values.size(),
                                                     shape.data(), shape.size());
  const Ort::AllocatorWithDefaultOptions allocator;
  const auto input = session.GetInputNameAllocated(0, allocator);
  const auto output = session.GetOutputNameAllocated(0, allocator);
  const char* const inputs[] = {input.get()};
  const char* const outputs[] = {output.get()};
  const auto results = session.Run(Ort::RunOptions(), inputs, &batch, 1, outputs, 1);

  const auto info = results[0].GetTensorTypeAndShapeInfo();
  const auto dims = info.GetShape();
  const size_t count = info.GetElementCount();
  const float* encoded = results[0].GetTensorData<float>();
  const double mean = std::accumulate(encoded, encoded + count, 0.0) / static_cast<double>(count);
  std::printf("{\"shape\":[%lld,%lld,%lld],\"mean\":%.6f,\"first\":[",
              static_cast<long long>(dims[0]), static_cast<long long>(dims[1]),
              static_cast<long long>(dims[2]), mean);
  for (size_t i = 0; i < 8; ++i) std::printf("%s%.6f", i ? "," : "", encoded[i]);
  std::printf("]}\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: run_encoder MODEL [KERNEL_LIBRARY]\n");
    return 2;
  }
  try {
    Run(argv[1], argc > 2 ? argv[2] : nullptr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
