#pragma once

#include <cstddef>

namespace coreai {

/// An instruction set for which the kernels are compiled, from the most basic to the widest.
/// kScalarFma is kScalar with fused multiply-adds, which the others have: slower, but with their
/// bits.
enum class Target { kScalarFma, kScalar, kNeon, kAvx2, kAvx512, kAvx512Bf16, kAmx };
inline constexpr std::size_t kTargetCount = 7;

/// Name in `COREAI_OPS_TARGET` and in messages: "scalar_fma", "scalar", "neon", "avx2", "avx512",
/// "avx512_bf16", "amx".
const char* TargetName(Target target);

/// Whether kernels for the target are in this library and this CPU (and its system) can run them.
/// For kAmx this requests the process's permission (simd/amx.h); if it is refused, the result is
/// false.
bool TargetIsSupported(Target target);

/// Whether this CPU has VPDPBUSD (VNNI) for the vectors of the target.
bool CpuHasVnni(Target target);

/// The widest supported target; the scalar target is always supported.
Target BestTarget();

/// Sets `target` to the target with that name; false if there is none.
bool FindTarget(const char* name, Target* target);

}  // namespace coreai
