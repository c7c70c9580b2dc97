#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/checks.h"

namespace coreai {

/// The normalized axes: the last ones of the input, contiguous in memory.
class NormAxes {
 public:
  /// Runs the checks that need no shape. Throws OpError.
  NormAxes(const Checker& check, std::vector<std::int64_t> axes);

  /// Index of the first normalized axis of an input of that shape. Throws OpError if the axes are
  /// not the trailing ones.
  std::size_t First(const Checker& check, const Shape& input) const;

 private:
  std::vector<std::int64_t> axes_;
};

}  // namespace coreai
