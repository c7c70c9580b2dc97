#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace coreai::fuzz {

using Ints = std::map<std::string, std::int64_t>;

inline constexpr const char* kNone = nullptr;

/// Dims of inputs that fit together: letters are sizes; G is twice F, M is twice L, W is V times H,
/// Z 4 times A, Q is 16, X 64, R and U are K and M groups of the attribute group_size, Y is L
/// blocks of 256, P is a palette for the attribute bits; # is an index, % a tensor of bytes, @ a
/// layout of blocks; "" is rank 0, kNone an absent input, ! one that is always present.
struct Layout {
  std::vector<const char*> inputs;
  Ints ints = {};  // what attributes must be
};
using Layouts = std::vector<Layout>;

/// The layouts of the inputs of an op.
const Layouts& LayoutsOf(const std::string& op);

}  // namespace coreai::fuzz
