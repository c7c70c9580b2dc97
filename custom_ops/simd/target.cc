#include "simd/target.h"

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "hwy/detect_targets.h"
#include "simd/amx.h"

namespace coreai {
namespace {

using Check = bool (*)();

bool Always() { return true; }
bool Never() { return false; }

#if HWY_ARCH_X86
struct Registers {
  unsigned eax, ebx, ecx, edx;
};

Registers Cpuid(unsigned leaf, unsigned subleaf) {
  Registers r = {leaf, 0, subleaf, 0};
  __asm__("cpuid" : "+a"(r.eax), "=b"(r.ebx), "+c"(r.ecx), "=d"(r.edx));
  return r;
}

// The registers that the operating system saves, as bits of XCR0.
unsigned SavedRegisters() {
  unsigned eax = 0, edx = 0;
  __asm__("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
  return eax;
}

constexpr bool HasAll(unsigned value, std::initializer_list<int> bits) {
  for (const int bit : bits) {
    if (((value >> bit) & 1u) == 0) return false;
  }
  return true;
}

// The features that Highway's targets of these names may use, read from CPUID: the runtime of Zig's
// compiler leaves the table of __builtin_cpu_supports empty, and gcc lacks names for some features.
struct Features {
  bool avx2 = false, avx_vnni = false, avx512 = false, avx512_vnni = false, avx512_bf16 = false;
};

Features ReadFeatures() {
  constexpr int kOsxsave = 27;
  const Registers one = Cpuid(1, 0);
  if (Cpuid(0, 0).eax < 7 || !HasAll(one.ecx, {kOsxsave})) return {};
  const unsigned saved = SavedRegisters();
  const Registers seven = Cpuid(7, 0);
  const unsigned more = seven.eax < 1 ? 0 : Cpuid(7, 1).eax;
  Features f;
  f.avx2 = HasAll(saved, {1, 2}) &&              // XMM, YMM
           HasAll(one.ecx, {1, 12, 25, 28, 29})  // PCLMUL, FMA, AES, AVX, F16C
           && HasAll(seven.ebx, {3, 5, 8});      // BMI, AVX2, BMI2
  f.avx_vnni = f.avx2 && HasAll(more, {4});
  f.avx512 = f.avx2 && HasAll(saved, {5, 6, 7}) &&     // masks, ZMM
             HasAll(seven.ebx, {16, 17, 28, 30, 31});  // F, DQ, CD, BW, VL
  f.avx512_vnni = f.avx512 && HasAll(seven.ecx, {11});
  // VBMI, VBMI2, GFNI, VAES, VPCLMULQDQ, BITALG, VPOPCNTDQ; BF16
  f.avx512_bf16 = f.avx512_vnni && HasAll(seven.ecx, {1, 6, 8, 9, 10, 12, 14}) && HasAll(more, {5});
  return f;
}

// Read once, because a virtual machine's host executes CPUID.
const Features& CpuFeatures() {
  static const Features features = ReadFeatures();
  return features;
}

bool CpuHasAvx2() { return CpuFeatures().avx2; }
bool CpuHasAvx512() { return CpuFeatures().avx512; }
bool CpuHasAvx512Bf16() { return CpuFeatures().avx512_bf16; }
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
    {"scalar_fma", Always},
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
  if (target == Target::kAvx2) return CpuFeatures().avx_vnni;
  return target >= Target::kAvx512 && CpuFeatures().avx512_vnni;
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
