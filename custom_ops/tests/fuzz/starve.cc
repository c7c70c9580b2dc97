#include "fuzz/starve.h"

#include <dlfcn.h>

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

// The operator that this file's stands before: a sanitizer's, or the standard library's.
template <class Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
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
  return next(bytes);
}

void* operator new[](std::size_t bytes) {
  static const auto next = coreai::fuzz::Next<void* (*)(std::size_t)>("_Znam");
  coreai::fuzz::Count();
  return next(bytes);
}

void* operator new(std::size_t bytes, std::align_val_t alignment) {
  static const auto next =
      coreai::fuzz::Next<void* (*)(std::size_t, std::align_val_t)>("_ZnwmSt11align_val_t");
  coreai::fuzz::Count();
  return next(bytes, alignment);
}
