#pragma once

#include "onnxruntime_c_api.h"

namespace coreai {

/// If the session options have the entry "coreai.huge_pages" with the value "1": lets the session
/// allocate weights and other blocks of at least 256 KiB in huge pages, on Linux.
///
/// The allocator is registered with onnxruntime's environment, and the session is told to use the
/// environment's allocators. If another allocator for the CPU is registered there, nothing changes.
/// Throws OpError.
void UseHugePages(const OrtApi& api, OrtSessionOptions* options);

}  // namespace coreai
