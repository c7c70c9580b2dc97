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

/// An op type of the composite in a model; bit i of `dtypes` allows coreai::DType i.
struct OpType {
  const char* name;
  unsigned dtypes;
};

/// The declaration of a composite; `ops/schema.h` has them all.
struct Composite {
  const char* name;
  std::int64_t version;
  const Input* inputs;
  std::size_t input_count;
  std::size_t output_count;
  const OpType* op_types;
  std::size_t op_type_count;
};

}  // namespace coreai::schema
