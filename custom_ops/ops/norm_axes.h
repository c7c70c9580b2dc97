#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/checks.h"

namespace coreai {

/// The axes a norm runs over: the last ones of its input, contiguous in memory.
class NormAxes {
 public:
  /// Checks what can be checked without a shape. Throws OpError.
  NormAxes(const Checker& check, std::vector<std::int64_t> axes);

  /// Index of the first normalised axis of an input of that shape. Throws OpError if the axes are
  /// not the trailing ones.
  std::size_t First(const Checker& check, const Shape& input) const;

 private:
  std::vector<std::int64_t> axes_;
};

}  // namespace coreai
