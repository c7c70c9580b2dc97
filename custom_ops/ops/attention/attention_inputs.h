#pragma once

#include "kernels/attention/attention.h"
#include "ops/checks.h"
#include "ops/widened.h"

namespace coreai {

/// The inputs of one attention call, checked for consistency.
class AttentionInputs {
 public:
  /// Throws OpError if a type or shape is invalid.
  AttentionInputs(const Checker& check, const KernelContext& context, DType dtype);

  Shape OutputShape() const;

  /// Sets the fields of `problem` that follow from the inputs. They point into this object.
  void Describe(AttentionProblem* problem) const;

 private:
  void CheckShapes(const Checker& check) const;
  void ReadMask(const Checker& check, const TensorView& mask);
  void ReadSinks(const Checker& check, const TensorView& sinks);

  DType dtype_;
  TensorView query_;
  TensorView key_;
  TensorView value_;
  AttentionMask mask_;
  Widened wide_mask_;  // if the mask has a type the kernel does not read
  Widened sinks_;
};

}  // namespace coreai
