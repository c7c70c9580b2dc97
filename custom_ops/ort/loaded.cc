#include "ort/loaded.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include <string>

#include "ort/error.h"

namespace coreai {
namespace {

// An address in this library.
const char kHere = 0;

#ifdef _WIN32
bool IsKept() {
  constexpr DWORD kFlags = GET_MODULE_HANDLE_EX_FLAG_PIN | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS;
  HMODULE self = nullptr;
  return GetModuleHandleExA(kFlags, &kHere, &self) != 0;
}
#else
bool IsKept() {
  Dl_info self = {};
  return dladdr(&kHere, &self) != 0 &&
         dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) != nullptr;
}
#endif

}  // namespace

void KeepLoaded() {
  static const bool kept = IsKept();
  if (!kept) throw OpError("the library cannot stay loaded");
}

}  // namespace coreai
