// The entry of a library with one kernel of a user's own, and all that it needs of ort/: one
// translation unit, so that a user compiles two files.

#include <map>
#include <memory>
#include <mutex>

#include "declaration.h"
#include "kit/kernel.h"
#include "ort/custom_op.cc"
#include "ort/domain.cc"
#include "ort/error.h"
#include "ort/kernel_context.cc"
#include "ort/kernel_info.cc"
#include "ort/op.cc"
#include "ort/session_entry.cc"
#include "ort/shape_inference.cc"

namespace coreai {
namespace {

std::unique_ptr<Op> Create(const KernelInfo& info, DType dtype, Target) {
  return CreateDeclaredKernel(info, dtype);
}

// Outputs whose declared dims are those of the first input; onnxruntime learns the others' later.
void InferShapes(const ShapeInference& shapes) {
  const SymbolicShape first = shapes.Input(0);
  if (first.rank() == 0) return;
  for (std::size_t i = 0; i < declared::kComposite.output_count; ++i) {
    if ((declared::kShapedOutputs >> i & 1u) != 0) shapes.SetOutput(i, first);
  }
}

const OpDefinition kDefinition{declared::kComposite, Create, InferShapes};
const OpDefinition* const kOps[] = {&kDefinition};

}  // namespace
}  // namespace coreai

/// Called by onnxruntime when the library is registered with session options.
extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(
    OrtSessionOptions* options, const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(coreai::kOrtApiVersion);
  if (api == nullptr) {
    const OrtApi* oldest = base->GetApi(1);
    return oldest == nullptr
               ? nullptr
               : oldest->CreateStatus(ORT_FAIL, "the kernel needs onnxruntime 1.21 or later");
  }
  return coreai::StatusOf(*api, coreai::declared::kComposite.name, [&] {
    static std::mutex mutex;
    // Never destroyed: sessions keep pointers to the ops. A process may have several onnxruntimes.
    static auto& sets = *new std::map<const OrtApi*, std::unique_ptr<coreai::OpSet>>;
    const std::lock_guard<std::mutex> lock(mutex);
    auto& ops = sets[api];
    if (ops == nullptr) {
      const coreai::OpList list{coreai::schema::kDomain, coreai::kOps, 1};
      ops = std::make_unique<coreai::OpSet>(*api, *base, list, coreai::Target::kScalar, "",
                                            /*reads_weights=*/false);
    }
    coreai::RegisterInSharedDomain(*api, options, coreai::schema::kDomain, *ops);
  });
}
