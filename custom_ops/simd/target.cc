#include "simd/target.h"

#include <cstdint>
#include <cstring>

#include "hwy/detect_targets.h"
#include "simd/amx.h"

namespace coreai {
namespace {

using Check = bool (*)();

bool Always() { return true; }
bool Never() { return false; }

#if HWY_ARCH_X86
// The features that Highway's targets of these names may use. The compiler's check includes whether
// the operating system saves the registers. gcc has no name for F16C before 11 and none for VAES
// and AVX-VNNI before 12, so these are read from CPUID; they add no register state.
bool CpuHasF16c() {
  unsigned eax = 1, ebx = 0, ecx = 0, edx = 0;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  return (ecx >> 29) & 1u;
}

bool CpuHasVaes() {
  unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  return (ecx >> 9) & 1u;
}

bool CpuHasAvxVnni() {
  unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  if (eax < 1) return false;  // the last subleaf
  eax = 7, ecx = 1;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  return (eax >> 4) & 1u;
}

bool CpuHasAvx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul") && CpuHasF16c();
}

bool CpuHasAvx512() {
  return CpuHasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw");
}

bool CpuHasAvx512Bf16() {
  return CpuHasAvx512() && __builtin_cpu_supports("avx512bf16") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bitalg") &&
         __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("vpclmulqdq") &&
         __builtin_cpu_supports("gfni") && CpuHasVaes();
}

bool CpuHasAvx512Amx() { return CpuHasAvx512Bf16() && CpuHasAmx(); }
#else
constexpr Check CpuHasAvx2 = Never, CpuHasAvx512 = Never, CpuHasAvx512Bf16 = Never,
                CpuHasAvx512Amx = Never;
#endif

struct Entry {
  const char* name;
  Check supported;
};

// The check of a target for some of whose Highway targets kernels are compiled.
constexpr Check IfCompiled(std::int64_t highway_targets, Check supported) {
  return (HWY_TARGETS & highway_targets) != 0 ? supported : Never;
}

constexpr Entry kTargets[kTargetCount] = {
    {"scalar", Always},
    {"neon", IfCompiled(HWY_ALL_NEON, Always)},  // every 64-bit Arm CPU has it
    {"avx2", IfCompiled(HWY_AVX2, CpuHasAvx2)},
    {"avx512", IfCompiled(HWY_AVX3, CpuHasAvx512)},
    {"avx512_bf16", IfCompiled(HWY_AVX3, CpuHasAvx512Bf16)},
    {"amx", IfCompiled(HWY_AVX3, CpuHasAvx512Amx)},
};

}  // namespace

const char* TargetName(Target target) { return kTargets[static_cast<std::size_t>(target)].name; }

bool TargetIsSupported(Target target) {
  return kTargets[static_cast<std::size_t>(target)].supported();
}

bool CpuHasVnni(Target target) {
#if HWY_ARCH_X86
  if (!TargetIsSupported(target)) return false;
  if (target == Target::kAvx2) return CpuHasAvxVnni();
  return target >= Target::kAvx512 && __builtin_cpu_supports("avx512vnni");
#else
  (void)target;
  return false;
#endif
}

Target BestTarget() {
  for (std::size_t i = kTargetCount; i-- > 0;) {
    if (kTargets[i].supported()) return static_cast<Target>(i);
  }
  return Target::kScalar;
}

bool FindTarget(const char* name, Target* target) {
  for (std::size_t i = 0; i < kTargetCount; ++i) {
    if (std::strcmp(name, kTargets[i].name) == 0) {
      *target = static_cast<Target>(i);
      return true;
    }
  }
  return false;
}

}  // namespace coreai
