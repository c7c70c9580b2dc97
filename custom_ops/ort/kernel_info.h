#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ort/error.h"
#include "ort/kernel_context.h"

namespace coreai {

/// Attributes of a node, read when its kernel is made. An attribute of another type than asked for
/// is an OpError that names the op and the attribute.
class KernelInfo {
 public:
  KernelInfo(const OrtApi& api, const OrtKernelInfo* info, const char* op)
      : api_(api), info_(info), op_(op) {}

  const OrtApi& api() const { return api_; }
  /// The op type the node has in the model, variant included.
  const char* op() const { return op_; }

  /// An input that is the same in every run, not present otherwise. It lies where the runs see it.
  TensorView Constant(std::size_t input) const;

  bool Has(const char* name) const;
  float Float(const char* name, float absent) const;
  std::int64_t Int(const char* name, std::int64_t absent) const;
  std::string String(const char* name, const char* absent) const;
  /// A single int counts as a list of one; an empty list is refused like another type.
  std::vector<std::int64_t> Ints(const char* name, std::vector<std::int64_t> absent) const;

 private:
  bool Ok(OrtStatus* status) const;
  /// The value of an attribute of whatever type, as a message shows it.
  std::string Describe(const char* name) const;
  [[noreturn]] void WrongType(const char* name, const char* wanted) const;

  const OrtApi& api_;
  const OrtKernelInfo* info_;
  const char* op_;
};

}  // namespace coreai
