#include "ort/domain.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "ort/custom_op.h"
#include "ort/error.h"
#include "ort/session_entry.h"

namespace coreai {
namespace {

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

constexpr char kSharedDomainKey[] = "coreai.domain.";

// The ops of a domain, and the domain, for one target and one list of op types.
struct Domain {
  std::unique_ptr<OpSet> ops;
  OrtCustomOpDomain* domain = nullptr;
};

OrtCustomOpDomain* CreateDomain(const OrtApi& api, OrtSessionOptions* options, const char* name) {
  OrtCustomOpDomain* domain = nullptr;
  ThrowOnError(api, api.CreateCustomOpDomain(name, &domain));
  ThrowOnError(api, api.AddCustomOpDomain(options, domain));
  return domain;
}

}  // namespace

OpSet::OpSet(const OrtApi& api, const OrtApiBase& base, const OpList& ops, Target target,
             const std::string& op_types)
    : api_(api), base_(base), op_types_("," + op_types + ",") {
  for (std::size_t i = 0; i < ops.size; ++i) Add(*ops.begin[i], target);
}

OpSet::~OpSet() = default;

void OpSet::AddTo(OrtCustomOpDomain* domain) const {
  for (const auto& op : ops_) ThrowOnError(api_, api_.CustomOpDomain_Add(domain, op.get()));
}

bool OpSet::Wanted(const char* op_type) const {
  return op_types_ == ",," || op_types_.find(std::string(",") + op_type + ",") != std::string::npos;
}

void OpSet::Add(const OpDefinition& definition, Target target) {
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

void OpSet::Add(const OpDefinition& definition, const char* name, DType dtype, DType state_dtype,
                Target target) {
  ops_.push_back(std::make_unique<CustomOp>(api_, definition, name, dtype, state_dtype, target));
  if (!MayInferShapes(base_, definition.composite.output_count)) {
    ops_.back()->InferOutputShapeFn = nullptr;
  }
}

void RegisterDomain(const OrtApi& api, const OrtApiBase& base, OrtSessionOptions* options,
                    const OpList& ops, Target target, const std::string& op_types) {
  // A process may load several copies of onnxruntime, and may change the override between sessions.
  using Key = std::tuple<const OrtApi*, Target, std::string>;
  static std::mutex mutex;
  // Never destroyed: a session may outlive the destructors of static objects.
  static auto& domains = *new std::map<Key, Domain>;
  const std::lock_guard<std::mutex> lock(mutex);
  Domain& known = domains[{&api, target, op_types}];
  if (known.domain != nullptr) {
    ThrowOnError(api, api.AddCustomOpDomain(options, known.domain));
    return;
  }
  known.ops = std::make_unique<OpSet>(api, base, ops, target, op_types);
  OrtCustomOpDomain* domain = CreateDomain(api, options, ops.domain);
  known.ops->AddTo(domain);
  known.domain = domain;
}

void RegisterInSharedDomain(const OrtApi& api, OrtSessionOptions* options, const char* name,
                            const OpSet& ops) {
  const std::string key = kSharedDomainKey + std::string(name);
  const std::string known = SessionEntry(api, options, key.c_str());
  if (!known.empty()) {
    void* domain = nullptr;
    if (std::sscanf(known.c_str(), "%p", &domain) != 1) throw OpError(key + " is " + known);
    ops.AddTo(static_cast<OrtCustomOpDomain*>(domain));
    return;
  }
  // Sessions that are created from the options read it, so it is not released: a few words each.
  OrtCustomOpDomain* domain = CreateDomain(api, options, name);
  char text[32];
  std::snprintf(text, sizeof(text), "%p", static_cast<void*>(domain));
  ThrowOnError(api, api.AddSessionConfigEntry(options, key.c_str(), text));
  ops.AddTo(domain);
}

}  // namespace coreai
