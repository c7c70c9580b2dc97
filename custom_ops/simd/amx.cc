#include "simd/amx.h"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace coreai {
namespace {

constexpr std::uint32_t Bit(int bit) { return 1u << bit; }

// Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A, "CPUID", and volume 1,
// chapter 18, "Programming with Intel AMX".
enum Register { kEax, kEbx, kEcx, kEdx };
constexpr std::uint32_t kOsxsave = Bit(27);                              // leaf 1, ecx
constexpr std::uint32_t kAmxFeatures = Bit(22) | Bit(24) | Bit(25);      // leaf 7, edx
constexpr std::uint64_t kTileState = std::uint64_t{3} << 17;             // XTILECFG, XTILEDATA
constexpr std::uint32_t kStateComponents = 0xD;                          // leaf
constexpr std::uint32_t kTileData = 18;                                  // its subleaf
constexpr std::uint32_t kTilePalettes = 0x1D;                            // leaf
constexpr std::uint32_t kTiles = 8, kTileRows = 16, kTileRowBytes = 64;  // of palette 1

bool HasPalette(const AmxSystem& system) {
  std::uint32_t r[4] = {};
  system.cpuid(kTilePalettes, 0, r);
  if (r[kEax] < 1) return false;
  system.cpuid(kTilePalettes, 1, r);
  return (r[kEbx] & 0xFFFF) >= kTileRowBytes && r[kEbx] >> 16 >= kTiles &&
         (r[kEcx] & 0xFFFF) >= kTileRows;
}

bool SavesEveryTile(const AmxSystem& system) {
  if ((system.saved_state() & kTileState) != kTileState) return false;
  std::uint32_t r[4] = {};
  system.cpuid(kStateComponents, kTileData, r);
  return r[kEax] >= kTiles * kTileRows * kTileRowBytes;
}

#if defined(__x86_64__) && defined(__linux__)
void Cpuid(std::uint32_t leaf, std::uint32_t subleaf, std::uint32_t* r) {
  __asm__ volatile("cpuid"
                   : "=a"(r[kEax]), "=b"(r[kEbx]), "=c"(r[kEcx]), "=d"(r[kEdx])
                   : "a"(leaf), "c"(subleaf));
}

std::uint64_t SavedState() {
  std::uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t{high} << 32 | low;
}

// Linux, Documentation/arch/x86/xstate.rst. The permission is read back because a system-call
// filter may answer the request without passing it on.
bool RequestPermission() {
  constexpr long kGetPermission = 0x1022, kRequestPermission = 0x1023;
  unsigned long permitted = 0;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 &&
         syscall(SYS_arch_prctl, kGetPermission, &permitted) == 0 &&
         (permitted >> kTileData & 1) != 0;
}
#endif

}  // namespace

bool AmxIsAllowed(const AmxSystem& system) {
  std::uint32_t r[4] = {};
  system.cpuid(0, 0, r);
  if (r[kEax] < kTilePalettes) return false;
  system.cpuid(1, 0, r);
  if ((r[kEcx] & kOsxsave) == 0) return false;
  system.cpuid(7, 0, r);
  if ((r[kEdx] & kAmxFeatures) != kAmxFeatures || !HasPalette(system)) return false;
  return SavesEveryTile(system) && system.request_permission();
}

bool CpuHasAmx() {
#if defined(__x86_64__) && defined(__linux__)
  static const bool allowed = AmxIsAllowed({Cpuid, SavedState, RequestPermission});
  return allowed;
#else
  return false;
#endif
}

}  // namespace coreai
