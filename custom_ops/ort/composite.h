#pragma once

#include <cstddef>
#include <cstdint>

namespace coreai::schema {

/// Element type of an input: the floating type of the op, int32 or int64, or any type that the op
/// itself checks.
enum class InputKind { kT, kIndex, kAny };

struct Input {
  const char* name;
  bool optional;
  InputKind kind;
};

/// The declaration of a composite; `ops/schema.h` has them all.
///
/// Its op types in models are its name, alone or with a suffix of words (`rope.offset_float16`): at
/// most one of each group of `variants`, in the order of the groups, and last a dtype.
struct Composite {
  const char* name;
  std::int64_t version;
  const Input* inputs;
  std::size_t input_count;
  std::size_t output_count;
  const char* const* variants;  ///< groups of words that spaces separate; null after the last
  unsigned dtypes;              ///< bit i allows coreai::DType i
};

}  // namespace coreai::schema
