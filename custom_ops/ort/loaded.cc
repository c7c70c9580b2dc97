#include "ort/loaded.h"

#include <dlfcn.h>

#include <string>

#include "ort/error.h"

namespace coreai {
namespace {

// An address in this library.
const char kHere = 0;

bool IsKept() {
  Dl_info self = {};
  return dladdr(&kHere, &self) != 0 &&
         dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) != nullptr;
}

}  // namespace

void KeepLoaded() {
  static const bool kept = IsKept();
  if (!kept) throw OpError("the library cannot stay loaded");
}

}  // namespace coreai
