// The two functions this library exports.

#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "ops/op_list.h"
#include "ort/allocator.h"
#include "ort/domain.h"
#include "ort/error.h"
#include "ort/loaded.h"
#include "ort/session_entry.h"

#ifdef _WIN32
#define COREAI_EXPORT extern "C" __declspec(dllexport)
#else
#define COREAI_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace coreai {
namespace {

// The target that COREAI_OPS_TARGET names, else the best one. Throws OpError.
Target ChooseTarget() {
  const char* wanted = std::getenv("COREAI_OPS_TARGET");
  if (wanted == nullptr || *wanted == '\0') return BestTarget();
  Target target = Target::kScalar;
  const bool known = FindTarget(wanted, &target);
  if (known && TargetIsSupported(target)) return target;
  std::string supported;
  for (std::size_t i = 0; i < kTargetCount; ++i) {
    const auto each = static_cast<Target>(i);
    if (TargetIsSupported(each)) supported += std::string(" ") + TargetName(each);
  }
  throw OpError("coreai ops: COREAI_OPS_TARGET=" + std::string(wanted) +
                (known ? " is not supported by this CPU or library" : " is not a known target") +
                "; supported here:" + supported);
}

}  // namespace
}  // namespace coreai

/// Called by onnxruntime when the library is registered with session options.
COREAI_EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(coreai::kOrtApiVersion);
  if (api == nullptr) {
    // Every version of the API can create statuses; the function's position is that of version 1.
    const OrtApi* oldest = base->GetApi(1);
    return oldest == nullptr
               ? nullptr
               : oldest->CreateStatus(ORT_FAIL, "coreai ops need onnxruntime 1.21 or later");
  }
  return coreai::StatusOf(*api, "coreai ops", [&] {
    coreai::KeepLoaded();
    // A caller that knows the model names its op types before it registers the library:
    //   options.add_session_config_entry("coreai.op_types", "rms_norm,layer_norm.unscaled")
    coreai::RegisterDomain(*api, *base, options, coreai::AllOps(), coreai::ChooseTarget(),
                           coreai::SessionEntry(*api, options, "coreai.op_types"),
                           {coreai::SessionEntry(*api, options, "coreai.deterministic") == "1",
                            coreai::SessionEntry(*api, options, "coreai.read_weights") == "1",
                            coreai::SessionEntry(*api, options, "coreai.float32_tiles") == "1",
                            coreai::SessionEntry(*api, options, "coreai.packed_weights"),
                            coreai::SessionEntry(*api, options, "coreai.group"),
                            static_cast<const coreai::RankTransport*>(
                                coreai::Address(*api, options, "coreai.group_transport")),
                            coreai::Seconds(*api, options, "coreai.group_timeout", 300)});
    coreai::UseHugePages(*api, options);
  });
}

/// "coreai_onnx_ops <version> target=<name> ort_api=21"; the text stays valid. If COREAI_OPS_TARGET
/// names an unsupported target, or memory is exhausted, the target is "unsupported".
COREAI_EXPORT const char* CoreaiOnnxOpsInfo() {
  try {
    static const auto& texts = *[] {
      auto all = std::make_unique<std::vector<std::string>>();
      for (std::size_t i = 0; i < coreai::kTargetCount; ++i) {
        all->push_back(std::string("coreai_onnx_ops " COREAI_OPS_VERSION " target=") +
                       coreai::TargetName(static_cast<coreai::Target>(i)) +
                       " ort_api=" + std::to_string(coreai::kOrtApiVersion));
      }
      return all.release();
    }();
    return texts[static_cast<std::size_t>(coreai::ChooseTarget())].c_str();
  } catch (const std::exception&) {
    static_assert(coreai::kOrtApiVersion == 21, "the text says so");
    return "coreai_onnx_ops " COREAI_OPS_VERSION " target=unsupported ort_api=21";
  }
}
