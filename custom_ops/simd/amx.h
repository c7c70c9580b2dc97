#pragma once

#include <cstdint>

namespace coreai {

/// What decides whether this process may use AMX. Tests replace the functions.
struct AmxSystem {
  /// Sets eax, ebx, ecx and edx of a leaf of CPUID.
  void (*cpuid)(std::uint32_t leaf, std::uint32_t subleaf, std::uint32_t* registers);
  /// The register state that the system saves (XCR0). Called only if CPUID reports OSXSAVE.
  std::uint64_t (*saved_state)();
  /// Requests permission to use tile data, for all threads of the process. Returns whether the
  /// system has granted it.
  bool (*request_permission)();
};

/// Whether the CPU has tiles of 16 rows of 64 bytes with products of bfloat16 and of 8-bit
/// integers, the system (or hypervisor) saves their state, and the process has permission to use
/// them. The permission is requested last.
bool AmxIsAllowed(const AmxSystem& system);

/// The same for this machine; determined once per process. Children of fork inherit the permission.
bool CpuHasAmx();

}  // namespace coreai
