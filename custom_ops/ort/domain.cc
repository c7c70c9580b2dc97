#include "ort/domain.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

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
  return IsAtLeast(base, outputs == 1 ? 24 : 28);
}

// The variant of products that only tiles compute faster than onnxruntime does with their body.
constexpr char kOfTiles[] = "tiles";

constexpr char kSharedDomainKey[] = "coreai.domain.";

std::vector<std::string> Words(const std::string& text, char separator) {
  std::vector<std::string> words;
  for (std::size_t first = 0; first < text.size();) {
    const std::size_t last = std::min(text.find(separator, first), text.size());
    words.push_back(text.substr(first, last - first));
    first = last + 1;
  }
  return words;
}

// An op type with one more word in its suffix.
std::string WithWord(const std::string& op_type, const std::string& word) {
  return op_type + (op_type.find('.') == std::string::npos ? "." : "_") + word;
}

// The op types of a composite that name no dtype.
std::vector<std::string> NamesWithoutDType(const schema::Composite& composite) {
  std::vector<std::string> names{composite.name};
  for (const char* const* group = composite.variants; *group != nullptr; ++group) {
    const std::vector<std::string> words = Words(*group, ' ');
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      longer.push_back(name);
      for (const std::string& word : words) longer.push_back(WithWord(name, word));
    }
    names = std::move(longer);
  }
  return names;
}

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
             const std::string& op_types, KernelOptions kernels)
    : api_(api), base_(base), kernels_(std::move(kernels)) {
  for (const std::string& op_type : Words(op_types, ',')) op_types_.insert(op_type);
  for (std::size_t i = 0; i < ops.size; ++i) Add(*ops.begin[i], target);
}

OpSet::~OpSet() = default;

void OpSet::AddTo(OrtCustomOpDomain* domain) const {
  for (const auto& op : ops_) ThrowOnError(api_, api_.CustomOpDomain_Add(domain, op.get()));
}

void OpSet::Add(const OpDefinition& definition, Target target) {
  const bool gains = kernels_.deterministic || (kernels_.float32_tiles && target == Target::kAmx);
  for (const std::string& name : NamesWithoutDType(definition.composite)) {
    if (!gains && name.find(kOfTiles) != std::string::npos) continue;
    for (std::size_t i = 0; i < kDTypeCount; ++i) {
      if ((definition.composite.dtypes >> i & 1u) == 0) continue;
      const auto dtype = static_cast<DType>(i);
      Add(definition, name, dtype, target);
      // Bodies that only float32 calls have names without a dtype.
      if (dtype != DType::kFloat32) Add(definition, WithWord(name, Name(dtype)), dtype, target);
    }
  }
}

void OpSet::Add(const OpDefinition& definition, const std::string& op_type, DType dtype,
                Target target) {
  if (!op_types_.empty() && op_types_.count(op_type) == 0) return;
  // onnxruntime selects the first match: without a state, the one with the op's own type.
  Add(definition, op_type, dtype, dtype, target);
  if (definition.has_state() && dtype != DType::kFloat32) {
    Add(definition, op_type, dtype, DType::kFloat32, target);
  }
}

void OpSet::Add(const OpDefinition& definition, const std::string& op_type, DType dtype,
                DType state_dtype, Target target) {
  ops_.push_back(std::make_unique<CustomOp>(api_, FindShapeReader(base_), definition, op_type,
                                            dtype, state_dtype, target, kernels_));
  if (!MayInferShapes(base_, definition.composite.output_count)) {
    ops_.back()->InferOutputShapeFn = nullptr;
  }
}

void RegisterDomain(const OrtApi& api, const OrtApiBase& base, OrtSessionOptions* options,
                    const OpList& ops, Target target, const std::string& op_types,
                    KernelOptions kernels) {
  if (kernels.deterministic) {
    target = target == Target::kScalar ? Target::kScalarFma : std::min(target, Target::kAvx512Bf16);
  }
  // A process may load several copies of onnxruntime, and may change the override between sessions.
  using Key = std::tuple<const OrtApi*, Target, std::string, bool, bool, bool, std::string,
                         std::string, const RankTransport*, double>;
  static std::mutex mutex;
  // Never destroyed: a session may outlive the destructors of static objects.
  static auto& domains = *new std::map<Key, Domain>;
  const std::lock_guard<std::mutex> lock(mutex);
  Domain& entry = domains[{&api, target, op_types, kernels.deterministic, kernels.reads_weights,
                           kernels.float32_tiles, kernels.packed_weights, kernels.group,
                           kernels.transport, kernels.group_timeout}];
  if (entry.domain != nullptr) {
    ThrowOnError(api, api.AddCustomOpDomain(options, entry.domain));
    return;
  }
  entry.ops = std::make_unique<OpSet>(api, base, ops, target, op_types, kernels);
  OrtCustomOpDomain* domain = CreateDomain(api, options, ops.domain);
  entry.ops->AddTo(domain);
  entry.domain = domain;
}

void RegisterInSharedDomain(const OrtApi& api, OrtSessionOptions* options, const char* name,
                            const OpSet& ops) {
  const std::string key = kSharedDomainKey + std::string(name);
  if (void* const domain = Address(api, options, key.c_str()); domain != nullptr) {
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
