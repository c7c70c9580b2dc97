// Embed a text with a file of export_model(..., include=["tokenizer", "pooling"]):
// embed_text MODEL TEXT [LIBRARY_OF_EXTENSIONS]
#include <onnxruntime_cxx_api.h>

#include <cstdio>
#include <exception>

namespace {

void Run(const char* model, const char* text, const char* library) {
  const Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "embed_text");
  Ort::SessionOptions options;
  if (library != nullptr) options.RegisterCustomOpsLibrary(library);
  Ort::Session session(env, model, options);

  const Ort::AllocatorWithDefaultOptions allocator;
  const int64_t shape[] = {1};
  auto batch =
      Ort::Value::CreateTensor(allocator, shape, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING);
  batch.FillStringTensor(&text, 1);
  const char* const inputs[] = {"text"};
  const char* const outputs[] = {"sentence_embedding"};
  const auto results = session.Run(Ort::RunOptions(), inputs, &batch, 1, outputs, 1);

  const auto dims = results[0].GetTensorTypeAndShapeInfo().GetShape();
  const float* embedding = results[0].GetTensorData<float>();
  std::printf("{\"shape\":[%lld,%lld],\"first\":[", static_cast<long long>(dims[0]),
              static_cast<long long>(dims[1]));
  for (size_t i = 0; i < 8; ++i) std::printf("%s%.6f", i ? "," : "", embedding[i]);
  std::printf("]}\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: embed_text MODEL TEXT [LIBRARY_OF_EXTENSIONS]\n");
    return 2;
  }
  try {
    Run(argv[1], argv[2], argc > 3 ? argv[3] : nullptr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
