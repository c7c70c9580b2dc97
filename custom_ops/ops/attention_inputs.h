#pragma once

#include "kernels/attention.h"
#include "ops/checks.h"
#include "ops/widened.h"

namespace coreai {

/// Inputs of one run of attention, checked against each other.
class AttentionInputs {
 public:
  /// Throws OpError if a type or shape does not fit.
  AttentionInputs(const Checker& check, const KernelContext& context, DType dtype);

  Shape OutputShape() const;

  /// Sets everything in `problem` that follows from the inputs. It points into this object.
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
