#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "onnxruntime_c_api.h"
#include "ort/op.h"
#include "simd/target.h"

namespace coreai {

struct CustomOp;

/// onnxruntime's custom ops for one target: one for each op type and dtype. Sessions keep pointers
/// to them.
class OpSet {
 public:
  /// `op_types` restricts the set, as for `RegisterDomain`.
  OpSet(const OrtApi& api, const OrtApiBase& base, const OpList& ops, Target target,
        const std::string& op_types, KernelOptions kernels = {});
  OpSet(const OpSet&) = delete;
  OpSet& operator=(const OpSet&) = delete;
  ~OpSet();

  /// Throws OpError.
  void AddTo(OrtCustomOpDomain* domain) const;

 private:
  void Add(const OpDefinition& definition, Target target);
  void Add(const OpDefinition& definition, const std::string& op_type, DType dtype, Target target);
  void Add(const OpDefinition& definition, const std::string& op_type, DType dtype,
           DType state_dtype, Target target);

  const OrtApi& api_;
  const OrtApiBase& base_;
  std::set<std::string> op_types_;  // empty for all
  const KernelOptions kernels_;
  std::vector<std::unique_ptr<CustomOp>> ops_;
};

/// Adds the ops to session options, with kernels for `target`. Throws OpError.
///
/// onnxruntime builds a schema for each of the 1,448 op types whenever a session is created, which
/// takes 0.14 s (custom_ops/README.md). A caller that knows the model can restrict the registration
/// to the op types that it calls: `op_types` is a list such as "rms_norm,layer_norm.unscaled", and
/// empty for all of them.
///
/// `ops` must be the same list in every call. Kernels that are `deterministic` use no tile
/// registers, which sum in an order of their own, and always fuse multiply-adds.
void RegisterDomain(const OrtApi& api, const OrtApiBase& base, OrtSessionOptions* options,
                    const OpList& ops, Target target, const std::string& op_types,
                    KernelOptions kernels);

/// Adds ops to the domain `name` of session options, which several libraries may do: onnxruntime
/// refuses two domains of one name, so the first library creates it, and an entry of the options
/// passes it to the others. Throws OpError.
void RegisterInSharedDomain(const OrtApi& api, OrtSessionOptions* options, const char* name,
                            const OpSet& ops);

}  // namespace coreai
