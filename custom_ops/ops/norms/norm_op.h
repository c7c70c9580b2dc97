#pragma once

#include <cstddef>

#include "kernels/norms/residual_add.h"
#include "ops/checks.h"
#include "ops/norms/norm_axes.h"
#include "ops/norms/residual.h"
#include "ops/op_list.h"
#include "ops/row_parameter.h"
#include "ops/row_split.h"

namespace coreai {

static_assert(schema::layer_norm::kAxesDefault[0] == schema::rms_norm::kAxesDefault[0] &&
                  schema::layer_norm::kEpsDefault == schema::rms_norm::kEpsDefault,
              "the attributes of one are read for both");

/// A norm over trailing axes: of the first input or, `kResidual`, of the sum of the first two,
/// which is then the second output.
///
/// `Norm` supplies the differences: `Norm::Kernel`, `Norm::Find`, and `Norm::Parameters`, the scale
/// (and bias) of a call, which is constructed from the index of the scale among the inputs and
/// applies a kernel to rows.
template <class Norm, bool kResidual>
class NormOp : public Op {
 public:
  NormOp(const KernelInfo& info, DType dtype, Target target)
      : check_(info.op()),
        axes_(check_, info.Ints(schema::rms_norm::kAxes, {schema::rms_norm::kAxesDefault[0]})),
        eps_(info.Float(schema::rms_norm::kEps, schema::rms_norm::kEpsDefault)),
        dtype_(dtype),
        add_(kResidual ? FindResidualAdd(target, dtype) : nullptr),
        kernels_{Norm::Find(target, dtype, false), Norm::Find(target, dtype, true)} {}

  void Compute(const KernelContext& context) const override {
    const TensorView input = context.Input(0);
    if (!kResidual) check_.Require("input", input, dtype_);
    const std::size_t first = axes_.First(check_, input.shape);
    const typename Norm::Parameters parameters(check_, context, kResidual ? 2 : 1, input.shape,
                                               first, dtype_);
    const std::size_t row_size = ElementCount(input.shape, first, input.shape.size());
    const typename Norm::Kernel kernel = kernels_[parameters.wide() ? 1 : 0];
    const auto norm = [&](const char* rows, char* output, std::size_t row, std::size_t count) {
      parameters.Apply(kernel, {rows, output, row, count, row_size, static_cast<double>(eps_)});
    };
    if constexpr (kResidual) {
      const TensorView skip = context.Input(1);
      ResidualRows(check_, context, dtype_, add_, input, skip).Run(first, parameters.run(), norm);
    } else {
      auto* output = static_cast<char*>(context.Output(0, input.shape));
      if (row_size == 0) return;
      const std::size_t row_bytes = row_size * SizeOf(dtype_);
      SplitRows(context, ElementCount(input.shape, 0, first), row_size, parameters.run(),
                [&](std::size_t row, std::size_t count) {
                  norm(static_cast<const char*>(input.data) + row * row_bytes,
                       output + row * row_bytes, row, count);
                });
    }
  }

 private:
  Checker check_;
  NormAxes axes_;
  float eps_;
  DType dtype_;
  ResidualAddKernel add_;
  typename Norm::Kernel kernels_[2];  // for parameters in the op's type, in the compute type
};

/// A range of rows that one call of a kernel normalizes.
struct NormRows {
  const void* input;
  void* output;
  std::size_t row;    ///< the first row, which selects the parameters
  std::size_t count;  ///< number of rows that share them
  std::size_t row_size;
  double eps;
};

}  // namespace coreai
