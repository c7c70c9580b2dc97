// A process that runs one token of a decoder and says so: first_result MODEL [LIBRARY OP_TYPES
// [PACKED_WEIGHTS [optimized]]]. It ends with its standard input, so that its memory can be read
// before.
#include <onnxruntime_cxx_api.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace {

// The rank-2 inputs are token ids, positions and the mask; the others are caches, which are empty.
Ort::Value InputOf(const Ort::Session& session, std::size_t i, std::vector<std::int64_t>* token) {
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  const auto type = session.GetInputTypeInfo(i);
  const auto info = type.GetTensorTypeAndShapeInfo();
  auto shape = info.GetShape();
  if (info.GetElementType() == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64) {
    shape.assign(shape.size(), 1);
    return Ort::Value::CreateTensor<std::int64_t>(memory, token->data(), 1, shape.data(),
                                                  shape.size());
  }
  static float nothing = 0;
  shape[0] = 1;
  shape[2] = 0;
  return Ort::Value::CreateTensor<float>(memory, &nothing, 0, shape.data(), shape.size());
}

void Run(int argc, char** argv) {
  const Ort::Env env(ORT_LOGGING_LEVEL_ERROR, "first_result");
  Ort::SessionOptions options;
  options.SetIntraOpNumThreads(1);
  if (argc > 3) {
    options.AddConfigEntry("coreai.op_types", argv[3]);
    if (argc > 4) options.AddConfigEntry("coreai.packed_weights", argv[4]);
    options.RegisterCustomOpsLibrary(argv[2]);
  }
  // Products of onnxruntime read the mapped file: a copy in its layout would be for each process.
  options.AddConfigEntry("session.disable_prepacking", "1");
  // The file is one that onnxruntime has optimized and saved.
  if (argc > 5) options.SetGraphOptimizationLevel(ORT_DISABLE_ALL);
  Ort::Session session(env, argv[1], options);
  std::vector<std::int64_t> token = {1};
  std::vector<std::string> names;
  std::vector<Ort::Value> values;
  const Ort::AllocatorWithDefaultOptions allocator;
  for (std::size_t i = 0; i < session.GetInputCount(); ++i) {
    names.emplace_back(session.GetInputNameAllocated(i, allocator).get());
    values.push_back(InputOf(session, i, &token));
  }
  std::vector<const char*> inputs;
  for (const std::string& name : names) inputs.push_back(name.c_str());
  const char* const outputs[] = {"logits"};
  session.Run(Ort::RunOptions(), inputs.data(), values.data(), values.size(), outputs, 1);
  std::puts("ready");
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
