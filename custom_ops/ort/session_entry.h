#pragma once

#include <string>

#include "onnxruntime_c_api.h"

namespace coreai {

/// Returns a configuration entry of session options; empty if there is none. Throws OpError.
std::string SessionEntry(const OrtApi& api, const OrtSessionOptions* options, const char* key);

}  // namespace coreai
