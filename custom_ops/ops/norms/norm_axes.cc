#include "ops/norms/norm_axes.h"

#include <algorithm>
#include <string>
#include <utility>

namespace coreai {

NormAxes::NormAxes(const Checker& check, std::vector<std::int64_t> axes) : axes_(std::move(axes)) {
  if (axes_.empty()) check.Fail("attribute axes is empty");
}

std::size_t NormAxes::First(const Checker& check, const Shape& input) const {
  const auto rank = static_cast<std::int64_t>(input.size());
  if (axes_.size() == 1 && axes_[0] == -1 && rank != 0) return input.size() - 1;
  std::vector<std::int64_t> axes = axes_;
  for (std::int64_t& axis : axes) {
    if (axis < -rank || axis >= rank) {
      check.Fail("attribute axes is " + ToString(axes_) + ", of which " + std::to_string(axis) +
                 " is out of range for input of shape " + ToString(input));
    }
    if (axis < 0) axis += rank;
  }
  std::sort(axes.begin(), axes.end());
  const auto count = static_cast<std::int64_t>(axes.size());
  for (std::int64_t i = 0; i < count; ++i) {
    if (axes[static_cast<std::size_t>(i)] != rank - count + i) {
      check.Fail("attribute axes is " + ToString(axes_) +
                 ", which are not the trailing axes of input of shape " + ToString(input));
    }
  }
  return static_cast<std::size_t>(rank - count);
}

}  // namespace coreai
