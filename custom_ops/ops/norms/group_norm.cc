#include "kernels/norms/group_norm.h"

#include <string>

#include "ops/checks.h"
#include "ops/op_list.h"
#include "ops/row_split.h"
#include "ops/widened.h"

namespace coreai {
namespace {

namespace names = schema::group_norm;
static_assert(names::kInputCount == 3 && names::kAttributeCount == 2, "the declaration changed");

// A scale or bias in the compute type; without data if it is absent.
Widened ReadChannels(const Checker& check, const char* name, const TensorView& parameter,
                     const Shape& input, DType dtype) {
  if (!parameter) return {};
  check.RequireFloating(name, parameter);
  if (parameter.shape != Shape{input[1]}) {
    check.Fail(std::string("input ") + name + " of shape " + ToString(parameter.shape) +
               " must have one element for each channel of input of shape " + ToString(input));
  }
  return {parameter, dtype};
}

// Pointer to the parameter of a channel; null for null.
const void* At(const Widened& parameters, std::size_t channel, DType dtype) {
  const auto* data = static_cast<const char*>(parameters.data());
  return data == nullptr ? nullptr : data + channel * SizeOf(WideDType(dtype));
}

class GroupNormOp : public Op {
 public:
  GroupNormOp(const KernelInfo& info, DType dtype, Target target)
      : check_(info.op()),
        groups_(info.Int(names::kNumGroups, names::kNumGroupsDefault)),
        eps_(info.Float(names::kEps, names::kEpsDefault)),
        dtype_(dtype),
        kernel_(FindGroupNorm(target, dtype)) {}

  void Compute(const KernelContext& context) const override {
    const TensorView input = context.Input(names::kInputInput);
    check_.Require("input", input, dtype_);
    const Shape& shape = input.shape;
    if (shape.size() < 2) {
      check_.Fail("input of shape " + ToString(shape) + " must have rank 2 at least");
    }
    if (groups_ < 1 || shape[1] % groups_ != 0) {
      check_.Fail("attribute num_groups is " + std::to_string(groups_) +
                  ", which does not divide the channels of input of shape " + ToString(shape));
    }
    const Widened scale =
        ReadChannels(check_, "scale", context.Input(names::kScaleInput), shape, dtype_);
    const Widened bias =
        ReadChannels(check_, "bias", context.Input(names::kBiasInput), shape, dtype_);
    auto* output = static_cast<char*>(context.Output(0, shape));
    if (ElementCount(shape) == 0) return;
    const auto groups = static_cast<std::size_t>(groups_);
    const std::size_t channels = static_cast<std::size_t>(shape[1]) / groups;
    const std::size_t places = ElementCount(shape, 2, shape.size());
    const std::size_t bytes = channels * places * SizeOf(dtype_);
    const std::size_t all = static_cast<std::size_t>(shape[0]) * groups;
    SplitRows(context, all, channels * places, all, [&](std::size_t first, std::size_t count) {
      for (std::size_t i = first; i < first + count; ++i) {
        const std::size_t channel = i % groups * channels;
        kernel_({static_cast<const char*>(input.data) + i * bytes, At(scale, channel, dtype_),
                 At(bias, channel, dtype_), output + i * bytes, channels, places,
                 static_cast<double>(eps_)});
      }
    });
  }

 private:
  Checker check_;
  std::int64_t groups_;
  float eps_;
  DType dtype_;
  GroupNormKernel kernel_;
};

}  // namespace

const OpDefinition kGroupNormOp = Define<GroupNormOp>(names::kComposite, ShapeOfFirstInput);

}  // namespace coreai
