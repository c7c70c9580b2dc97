#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ort/error.h"
#include "ort/kernel_context.h"

namespace coreai {

struct RankTransport;

/// What all kernels of a session have in common.
struct KernelOptions {
  /// The order of sums must depend on the shape of a row only: neither on the other rows, nor on
  /// how many of its tokens earlier calls have read.
  bool deterministic = false;
  /// Kernels read weights in each call, from the mapped file, and hold no copies in a layout of
  /// their own: no input counts as constant.
  bool reads_weights = false;
  /// Products of float32 with constant matrices may be sums of products of bfloat16, in tiles.
  bool float32_tiles = false;
  /// The path of a PackedFile that constant weights are taken from, and added to; empty for none.
  std::string packed_weights;
  /// The name of the RankGroup that collectives join; empty for none.
  std::string group;
  /// What collectives call instead, for ranks on several hosts; null for none.
  const RankTransport* transport = nullptr;
  /// How long a collective waits for other ranks, in seconds.
  double group_timeout = 300;
};

/// Attributes of a node, read when its kernel is created. If an attribute has another type than
/// requested, an OpError names the op and the attribute.
class KernelInfo {
 public:
  KernelInfo(const OrtApi& api, const OrtKernelInfo* info, const char* op,
             const KernelOptions& options)
      : api_(api), info_(info), op_(op), options_(options) {}

  const OrtApi& api() const { return api_; }
  /// The op type of the node in the model, including the variant.
  const char* op() const { return op_; }
  bool deterministic() const { return options_.deterministic; }
  bool float32_tiles() const { return options_.float32_tiles; }
  const std::string& packed_weights() const { return options_.packed_weights; }
  const std::string& group() const { return options_.group; }
  const RankTransport* transport() const { return options_.transport; }
  double group_timeout() const { return options_.group_timeout; }

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
  const KernelOptions& options_;
};

}  // namespace coreai
