// The two functions this library exports.

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ort/custom_op.h"
#include "ort/error.h"

#define COREAI_EXPORT extern "C" __attribute__((visibility("default")))

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

// Whether this onnxruntime may be told the shapes of outputs. Releases before 1.24 read the type of
// every input first, and crash on an optional one that is left out before another (seen in 1.21.1,
// not in 1.24.4). They infer the types by themselves.
bool MayInferShapes(const OrtApiBase& base) {
  int major = 0, minor = 0;
  const char* version = base.GetVersionString();
  if (std::sscanf(version, "%d.%d", &major, &minor) != 2) return false;
  return major > 1 || (major == 1 && minor >= 24);
}

// All ops for one onnxruntime and one target. Sessions keep pointers into it, so it lives as long
// as the library does.
class Domain {
 public:
  Domain(const OrtApi& api, Target target, bool infers_shapes)
      : api_(api), infers_shapes_(infers_shapes) {
    ThrowOnError(api, api.CreateCustomOpDomain(schema::kDomain, &domain_));
    const OpList list = AllOps();
    for (std::size_t i = 0; i < list.size; ++i) Add(*list.begin[i], target);
  }

  void Register(OrtSessionOptions* options) const {
    ThrowOnError(api_, api_.AddCustomOpDomain(options, domain_));
  }

 private:
  void Add(const OpDefinition& definition, Target target) {
    const schema::Composite& composite = definition.composite;
    for (std::size_t i = 0; i < composite.op_type_count; ++i) {
      const schema::OpType& op_type = composite.op_types[i];
      for (std::size_t dtype = 0; dtype < kDTypeCount; ++dtype) {
        if ((op_type.dtypes >> dtype & 1u) == 0) continue;
        ops_.push_back(std::make_unique<CustomOp>(api_, definition, op_type.name,
                                                  static_cast<DType>(dtype), target));
        if (!infers_shapes_) ops_.back()->InferOutputShapeFn = nullptr;
        ThrowOnError(api_, api_.CustomOpDomain_Add(domain_, ops_.back().get()));
      }
    }
  }

  const OrtApi& api_;
  const bool infers_shapes_;
  OrtCustomOpDomain* domain_ = nullptr;
  std::vector<std::unique_ptr<CustomOp>> ops_;
};

// A process may hold several copies of onnxruntime, and may change the override between sessions.
const Domain& DomainFor(const OrtApi& api, const OrtApiBase& base, Target target) {
  static std::mutex mutex;
  // Never destroyed: a session may outlive the destructors of static objects.
  static auto& domains = *new std::map<std::pair<const OrtApi*, Target>, std::unique_ptr<Domain>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Domain>& domain = domains[{&api, target}];
  if (domain == nullptr) {
    domain = std::make_unique<Domain>(api, target, MayInferShapes(base));
  }
  return *domain;
}

}  // namespace
}  // namespace coreai

/// Called by onnxruntime when the library is registered with session options.
COREAI_EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(coreai::kOrtApiVersion);
  if (api == nullptr) {
    // Statuses are made by any version of the API; the first one has the function at this place.
    const OrtApi* oldest = base->GetApi(1);
    return oldest == nullptr
               ? nullptr
               : oldest->CreateStatus(ORT_FAIL, "coreai ops need onnxruntime 1.21 or later");
  }
  return coreai::StatusOf(
      *api, [&] { coreai::DomainFor(*api, *base, coreai::ChooseTarget()).Register(options); });
}

/// "coreai_onnx_ops <version> target=<name> ort_api=21"; the text stays valid. If COREAI_OPS_TARGET
/// cannot be obeyed, the target is "unsupported".
COREAI_EXPORT const char* CoreaiOnnxOpsInfo() {
  static const auto& texts = *[] {
    auto* all = new std::vector<std::string>;
    const auto text = [](const char* name) {
      return std::string("coreai_onnx_ops " COREAI_OPS_VERSION " target=") + name +
             " ort_api=" + std::to_string(coreai::kOrtApiVersion);
    };
    for (std::size_t i = 0; i < coreai::kTargetCount; ++i) {
      all->push_back(text(coreai::TargetName(static_cast<coreai::Target>(i))));
    }
    all->push_back(text("unsupported"));
    return all;
  }();
  try {
    return texts[static_cast<std::size_t>(coreai::ChooseTarget())].c_str();
  } catch (const coreai::OpError&) {
    return texts.back().c_str();
  }
}
