#include "ort/domain.h"

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "ort/custom_op.h"
#include "ort/error.h"
#include "ort/session_entry.h"

namespace coreai {
namespace {

constexpr char kOpTypesKey[] = "coreai.op_types";

// Whether shape inference functions are safe in this onnxruntime. Releases before 1.24 read the
// type of every input first, and crash on an omitted optional input that is followed by another
// (seen in 1.21.1, not in 1.24.4). Releases before 1.28 crash if the shape of an output is set that
// the node does not have (seen in 1.24.4 and 1.27.0). All of them infer types without our help.
bool MayInferShapes(const OrtApiBase& base, std::size_t outputs) {
  char* end = nullptr;
  const long major = std::strtol(base.GetVersionString(), &end, 10);
  const long minor = *end == '.' ? std::strtol(end + 1, nullptr, 10) : 0;
  return major > 1 || (major == 1 && minor >= (outputs == 1 ? 24 : 28));
}

// All ops for one onnxruntime and one target. Sessions keep pointers into it, so it is never
// destroyed.
class Domain {
 public:
  Domain(const OrtApi& api, const OrtApiBase& base, const OpList& ops, Target target,
         const std::string& op_types)
      : api_(api), base_(base), op_types_("," + op_types + ",") {
    ThrowOnError(api, api.CreateCustomOpDomain(ops.domain, &domain_));
    for (std::size_t i = 0; i < ops.size; ++i) Add(*ops.begin[i], target);
  }

  void Register(OrtSessionOptions* options) const {
    ThrowOnError(api_, api_.AddCustomOpDomain(options, domain_));
  }

 private:
  bool Wanted(const char* op_type) const {
    return op_types_ == ",," ||
           op_types_.find(std::string(",") + op_type + ",") != std::string::npos;
  }

  void Add(const OpDefinition& definition, Target target) {
    const schema::Composite& composite = definition.composite;
    for (std::size_t i = 0; i < composite.op_type_count; ++i) {
      const schema::OpType& op_type = composite.op_types[i];
      if (!Wanted(op_type.name)) continue;
      for (std::size_t dtype = 0; dtype < kDTypeCount; ++dtype) {
        if ((op_type.dtypes >> dtype & 1u) == 0) continue;
        const auto element = static_cast<DType>(dtype);
        // onnxruntime selects the first match: without a state, the one with the op's own type.
        Add(definition, op_type.name, element, element, target);
        if (definition.has_state() && element != DType::kFloat32) {
          Add(definition, op_type.name, element, DType::kFloat32, target);
        }
      }
    }
  }

  void Add(const OpDefinition& definition, const char* name, DType dtype, DType state_dtype,
           Target target) {
    ops_.push_back(std::make_unique<CustomOp>(api_, definition, name, dtype, state_dtype, target));
    if (!MayInferShapes(base_, definition.composite.output_count)) {
      ops_.back()->InferOutputShapeFn = nullptr;
    }
    ThrowOnError(api_, api_.CustomOpDomain_Add(domain_, ops_.back().get()));
  }

  const OrtApi& api_;
  const OrtApiBase& base_;
  const std::string op_types_;
  OrtCustomOpDomain* domain_ = nullptr;
  std::vector<std::unique_ptr<CustomOp>> ops_;
};

}  // namespace

void RegisterDomain(const OrtApi& api, const OrtApiBase& base, OrtSessionOptions* options,
                    const OpList& ops, Target target) {
  // A process may load several copies of onnxruntime, and may change the override between sessions.
  using Key = std::tuple<const OrtApi*, Target, std::string>;
  static std::mutex mutex;
  // Never destroyed: a session may outlive the destructors of static objects.
  static auto& domains = *new std::map<Key, std::unique_ptr<Domain>>;
  const std::string op_types = SessionEntry(api, options, kOpTypesKey);
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Domain>& domain = domains[{&api, target, op_types}];
  if (domain == nullptr) {
    domain = std::make_unique<Domain>(api, base, ops, target, op_types);
  }
  domain->Register(options);
}

}  // namespace coreai
