#pragma once

#include "onnxruntime_c_api.h"
#include "ort/op.h"
#include "simd/target.h"

namespace coreai {

/// Adds the ops to session options, with kernels for `target`. Throws OpError.
///
/// onnxruntime builds a schema for each of the several hundred (name, dtype) pairs whenever a
/// session is created, which takes milliseconds. A caller that knows the model can restrict the
/// registration to the op types that it calls, before registering the library:
///
///   options.add_session_config_entry("coreai.op_types", "rms_norm,layer_norm.unscaled")
///
/// `ops` must be the same list in every call.
void RegisterDomain(const OrtApi& api, const OrtApiBase& base, OrtSessionOptions* options,
                    const OpList& ops, Target target);

}  // namespace coreai
