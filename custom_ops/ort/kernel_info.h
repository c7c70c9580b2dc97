#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ort/error.h"
#include "ort/kernel_context.h"

namespace coreai {

/// Attributes of a node, read when its kernel is created. If an attribute has another type than
/// requested, an OpError names the op and the attribute.
class KernelInfo {
 public:
  /// With `reads_weights`, no input is constant.
  KernelInfo(const OrtApi& api, const OrtKernelInfo* info, const char* op, bool reads_weights)
      : api_(api), info_(info), op_(op), reads_weights_(reads_weights) {}

  const OrtApi& api() const { return api_; }
  /// The op type of the node in the model, including the variant.
  const char* op() const { return op_; }

  /// An input if it is constant, else false. Runs see it at the same address. A kernel may copy it
  /// to a layout of its own, which a session that reads its weights in each call does not allow.
  TensorView Constant(std::size_t input) const;

  bool Has(const char* name) const;
  float Float(const char* name, float absent) const;
  std::int64_t Int(const char* name, std::int64_t absent) const;
  std::string String(const char* name, const char* absent) const;
  /// A single int is accepted as a list of one; an empty list is an error, like another type.
  std::vector<std::int64_t> Ints(const char* name, std::vector<std::int64_t> absent) const;

 private:
  bool Ok(OrtStatus* status) const;
  /// The value of an attribute of any type, formatted for a message.
  std::string Describe(const char* name) const;
  [[noreturn]] void WrongType(const char* name, const char* wanted) const;

  const OrtApi& api_;
  const OrtKernelInfo* info_;
  const char* op_;
  bool reads_weights_;
};

}  // namespace coreai
