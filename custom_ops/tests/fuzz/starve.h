#pragma once

#include <cstddef>

namespace coreai::fuzz {

/// Whose code a thread runs.
enum class Party {
  kFuzzer,   ///< or the stand-in for onnxruntime, called by the library
  kLibrary,  ///< may be refused memory
  kItem,     ///< a part of the library's work, which must not ask for any
};

/// While it lives, this thread runs the code of `party`.
class Running {
 public:
  explicit Running(Party party);
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  Party before_;
};

/// Refuses this thread the `which`-th allocation that the library makes from now on, counted from
/// 1, and no other; 0: none.
void Starve(std::size_t which);

/// Whether that allocation was asked for.
bool Starved();

}  // namespace coreai::fuzz
