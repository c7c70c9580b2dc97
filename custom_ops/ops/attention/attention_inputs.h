#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention/attention.h"
#include "ops/checks.h"
#include "ops/widened.h"

namespace coreai {

/// The tensors of one attention call. With a block table, key and value are pools of blocks,
/// [blocks, tokens of a block, heads, dim].
struct AttentionTensors {
  TensorView query, key, value, block_table, mask, sinks;
  unsigned bits = 0;  ///< 8 or 4: key and value are codes with scales, see AttentionCodes
  TensorView key_scales = {}, value_scales = {};
  bool bshd = false;  ///< query, key and value are [batch, length, heads, dim]
};

/// The inputs of one attention call, checked for consistency.
class AttentionInputs {
 public:
  /// Throws OpError if a type or shape is invalid, or the table names a block that there is not.
  AttentionInputs(const Checker& check, const AttentionTensors& tensors, DType dtype);

  Shape OutputShape() const;

  /// Sets the fields of `problem` that follow from the inputs. They point into this object.
  void Describe(AttentionProblem* problem) const;

 private:
  void Require(const Checker& check, bool condition, const char* what) const;
  void CheckShapes(const Checker& check) const;
  void CheckContiguous(const Checker& check);
  void CheckPools(const Checker& check, const TensorView& table);
  void ReadTable(const Checker& check, const TensorView& table);
  void CheckHeads(const Checker& check) const;
  void CheckCodes(const Checker& check, const AttentionTensors& tensors);
  void ReadMask(const Checker& check, const TensorView& mask);
  void ReadSinks(const Checker& check, const TensorView& sinks);

  DType dtype_;
  TensorView query_;
  TensorView key_;
  TensorView value_;
  std::int64_t keys_ = 0;
  std::int64_t key_heads_ = 0;
  std::int64_t value_heads_ = 0;
  std::vector<std::int64_t> table_;
  AttentionBlocks blocks_;
  bool bshd_;
  AttentionCodes codes_;
  AttentionMask mask_;
  Widened wide_mask_;  // if the mask has a type the kernel does not read
  Widened sinks_;
};

}  // namespace coreai
