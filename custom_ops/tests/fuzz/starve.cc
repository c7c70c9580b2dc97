#include "fuzz/starve.h"

#ifdef _WIN32
#include <malloc.h>
#else
#include <dlfcn.h>
#endif

#include <cstdio>
#include <cstdlib>
#include <new>

namespace coreai::fuzz {
namespace {

thread_local Party running = Party::kFuzzer;
thread_local std::size_t left = 0;
thread_local bool starved = false;

void Count() {
  if (running == Party::kItem) {
    std::fprintf(stderr, "a part of a kernel's work allocates memory\n");
    std::abort();
  }
  if (running != Party::kLibrary || left == 0 || --left != 0) return;
  starved = true;
  throw std::bad_alloc();
}

// The operator that this file's stands before: a sanitizer's, or that of a shared standard library.
// Null if the standard library is linked statically, as Zig's is: its operators are malloc and
// free.
template <class Function>
Function Next([[maybe_unused]] const char* name) {
#ifdef _WIN32
  return nullptr;
#else
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
#endif
}

void* Checked(void* block) {
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

void* AllocateAligned(std::size_t bytes, std::size_t alignment) {
#ifdef _WIN32
  return _aligned_malloc(bytes, alignment);
#else
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
#endif
}

}  // namespace

Running::Running(Party party) : before_(running) { running = party; }
Running::~Running() { running = before_; }

void Starve(std::size_t which) {
  left = which;
  starved = false;
}

bool Starved() { return starved; }

}  // namespace coreai::fuzz

void* operator new(std::size_t bytes) {
  static const auto next = coreai::fuzz::Next<void* (*)(std::size_t)>("_Znwm");
  coreai::fuzz::Count();
  return next != nullptr ? next(bytes) : coreai::fuzz::Checked(std::malloc(bytes));
}

void* operator new[](std::size_t bytes) {
  static const auto next = coreai::fuzz::Next<void* (*)(std::size_t)>("_Znam");
  coreai::fuzz::Count();
  return next != nullptr ? next(bytes) : coreai::fuzz::Checked(std::malloc(bytes));
}

void* operator new(std::size_t bytes, std::align_val_t alignment) {
  static const auto next =
      coreai::fuzz::Next<void* (*)(std::size_t, std::align_val_t)>("_ZnwmSt11align_val_t");
  coreai::fuzz::Count();
  if (next != nullptr) return next(bytes, alignment);
  return coreai::fuzz::Checked(
      coreai::fuzz::AllocateAligned(bytes, static_cast<std::size_t>(alignment)));
}
