#include "ort/allocator.h"

#if defined(__linux__)
#include <dlfcn.h>
#endif

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>

#include "memory/huge_page_pool.h"
#include "ort/error.h"
#include "ort/session_entry.h"

namespace coreai {
namespace {

constexpr char kUseEnvironment[] = "session.use_env_allocators";
constexpr std::size_t kPooled = std::size_t{256} << 10;

constexpr auto kAligned = std::align_val_t{64};

// Returns null if there is no memory.
[[gnu::noinline]] void* AllocateBlock(std::size_t size) noexcept {
  return size >= kPooled ? SharedHugePages().Allocate(size)
                         : ::operator new(size, kAligned, std::nothrow);
}

#if defined(_LIBCPP_VERSION) && defined(__linux__)
// A library with a C++ runtime of its own, as in wheels: onnxruntime catches what libstdc++ throws.
// libstdc++ cannot unwind a frame that has a handler or a destructor of another runtime, so the
// callers of this function have none.
[[noreturn, gnu::noinline]] void ThrowOutOfMemory(std::size_t size) {
  char what[64];
  std::snprintf(what, sizeof(what), "cannot allocate %zu bytes", size);
  if (void* const library = dlopen("libstdc++.so.6", RTLD_NOW | RTLD_NOLOAD)) {
    using Throw = void (*)(const char*);
    const auto raise = reinterpret_cast<Throw>(dlsym(library, "_ZSt21__throw_runtime_errorPKc"));
    if (raise != nullptr) raise(what);
  }
  std::abort();
}
#else
[[noreturn]] void ThrowOutOfMemory(std::size_t size) {
  throw std::runtime_error("cannot allocate " + std::to_string(size) + " bytes");
}
#endif

// Throws as onnxruntime's own allocators do: it writes to a null pointer without a check.
void* Allocate(OrtAllocator*, std::size_t size) {
  void* const block = AllocateBlock(size);
  if (block == nullptr && size != 0) ThrowOutOfMemory(size);
  return block;
}

// The allocator of one onnxruntime, which holds it until the process ends.
class Allocator : public OrtAllocator {
 public:
  explicit Allocator(const OrtApi& api) : OrtAllocator{} {
    version = kOrtApiVersion;
    Alloc = Reserve = Allocate;
    Free = [](OrtAllocator*, void* block) {
      if (!SharedHugePages().Free(block)) ::operator delete(block, kAligned);
    };
    Info = [](const OrtAllocator* self) -> const OrtMemoryInfo* {
      return static_cast<const Allocator*>(self)->info_;
    };
    ThrowOnError(api, api.CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &info_));
  }

 private:
  OrtMemoryInfo* info_ = nullptr;
};

// Whether our allocator is that of the environment; registers it the first time.
bool IsRegistered(const OrtApi& api) {
  static std::mutex mutex;
  // Never destroyed: sessions free their memory after the destructors of static objects.
  static auto& registered = *new std::map<const OrtApi*, bool>;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto [entry, is_new] = registered.emplace(&api, false);
  if (!is_new) return entry->second;
  OrtEnv* env = nullptr;  // the environment of the process, which exists
  ThrowOnError(api, api.CreateEnv(ORT_LOGGING_LEVEL_WARNING, "coreai", &env));
  const std::unique_ptr<OrtEnv, decltype(api.ReleaseEnv)> held(env, api.ReleaseEnv);
  OrtStatus* const status = api.RegisterAllocator(env, std::make_unique<Allocator>(api).release());
  entry->second = status == nullptr;
  if (status != nullptr) api.ReleaseStatus(status);
  return entry->second;
}

}  // namespace

void UseHugePages(const OrtApi& api, OrtSessionOptions* options) {
#ifdef __linux__
  constexpr bool kHasHugePages = true;
#else
  constexpr bool kHasHugePages = false;
#endif
  if (!kHasHugePages || SessionEntry(api, options, "coreai.huge_pages") != "1") return;
  if (!SessionEntry(api, options, kUseEnvironment).empty() || !IsRegistered(api)) return;
  ThrowOnError(api, api.AddSessionConfigEntry(options, kUseEnvironment, "1"));
}

}  // namespace coreai
