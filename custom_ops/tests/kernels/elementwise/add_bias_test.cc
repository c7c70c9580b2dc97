#include "kernels/elementwise/add_bias.h"

#include "reference/add_bias.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

const Activation kActivations[] = {Activation::kNone,     Activation::kSilu,    Activation::kGelu,
                                   Activation::kGeluTanh, Activation::kSigmoid, Activation::kTanh,
                                   Activation::kExp};

void Check(DType dtype, const std::vector<double>& inputs, std::size_t columns, std::size_t shift) {
  const Tensor input(dtype, inputs, shift), bias(dtype, Normal(columns, 2), shift);
  const std::size_t rows = columns == 0 ? 0 : inputs.size() / columns;
  for (const Activation activation : kActivations) {
    std::vector<double> want(inputs.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      // An exponential multiplies the rounding of the sum by the sum.
      const double sum = input[i] + bias[i % columns];
      const double rounded = dtype == DType::kFloat64 ? sum : static_cast<float>(sum);
      want[i] = AddBiasReference(activation, rounded, 0);
    }
    for (const Target target : SupportedTargets()) {
      SCOPED_TRACE(::testing::Message()
                   << TargetName(target) << ' ' << Name(dtype) << ' ' << rows << " x " << columns
                   << " kind " << static_cast<int>(activation));
      const AddBiasKernel kernel = FindAddBias(target, dtype, activation);
      const Tensor y(dtype, inputs.size(), shift), again(dtype, input.Values(), shift);
      kernel({input.data(), bias.data(), y.data(), rows, columns});
      kernel({again.data(), bias.data(), again.data(), rows, columns});
      ExpectNear(y, want, dtype);
      ExpectNear(again, want, dtype);
    }
  }
}

TEST(AddBias, EveryWidthAndAlignment) {
  for (const DType dtype : AllDTypes()) {
    for (std::size_t n = 0; n <= 2 * 16 + 1; ++n) {
      Check(dtype, Normal(3 * n, static_cast<unsigned>(n), 0, 3), n, n % 4);
    }
  }
}

TEST(AddBias, WideRange) {
  std::vector<double> inputs;
  for (double x = -60; x <= 60; x += 0.037) inputs.push_back(x);
  for (const DType dtype : AllDTypes()) Check(dtype, inputs, inputs.size(), 0);
}

}  // namespace
}  // namespace coreai::testing
