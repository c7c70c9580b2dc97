#pragma once

#include "onnxruntime_c_api.h"

namespace coreai {

/// If the session options have the entry "coreai.huge_pages" with the value "1": lets the session
/// allocate weights and other blocks of at least 256 KiB in huge pages, on Linux.
///
/// The allocator is registered with onnxruntime's environment, and the options get the entry that
/// selects the environment's allocators. Options that have that entry already are not changed:
/// their application has allocators of its own. If another allocator for the CPU is registered
/// there, some versions of onnxruntime keep it, and nothing changes; others replace it (1.31.1
/// does). Throws OpError.
void UseHugePages(const OrtApi& api, OrtSessionOptions* options);

}  // namespace coreai
