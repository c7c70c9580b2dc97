#pragma once

#include <string>

#include "onnxruntime_c_api.h"

namespace coreai {

/// Returns a configuration entry of session options; empty if there is none. Throws OpError.
std::string SessionEntry(const OrtApi& api, const OrtSessionOptions* options, const char* key);

/// Returns an entry that is an address, as `%p` writes it; null if there is none. Throws OpError.
void* Address(const OrtApi& api, const OrtSessionOptions* options, const char* key);

/// Returns an entry that is a number of seconds greater than 0; `absent` if there is none. Throws
/// OpError.
double Seconds(const OrtApi& api, const OrtSessionOptions* options, const char* key, double absent);

}  // namespace coreai
