#pragma once

namespace coreai {

/// Keeps this library in memory until the process ends, however it was linked.
///
/// onnxruntime unloads the library with the last session that uses it. Its environment keeps the
/// allocator (ort/allocator.h), whose code would be gone, and what is kept for all sessions would
/// be lost. Throws OpError.
void KeepLoaded();

}  // namespace coreai
