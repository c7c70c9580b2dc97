#pragma once

#include <string>

#include "onnxruntime_c_api.h"
#include "simd/target.h"

namespace coreai {

/// Adds the ops to session options, with kernels for `target`. Throws OpError.
///
/// onnxruntime builds a schema for each of the several hundred (name, dtype) pairs each time a
/// session is made, which takes milliseconds. Whoever knows the model can say what it calls, before
/// registering the library, and only that is registered:
///
///   options.add_session_config_entry("coreai.op_types", "rms_norm,layer_norm.unscaled")
void RegisterDomain(const OrtApi& api, const OrtApiBase& base, OrtSessionOptions* options,
                    Target target);

}  // namespace coreai
