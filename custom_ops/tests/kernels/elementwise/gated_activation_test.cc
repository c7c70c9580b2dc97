#include "kernels/elementwise/gated_activation.h"

#include "reference/gated_activation.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

const Activation kActivations[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh};

void Check(DType dtype, const std::vector<double>& gates, std::size_t shift) {
  const Tensor gate(dtype, gates, shift), up(dtype, Normal(gates.size(), 2), shift);
  for (const Activation activation : kActivations) {
    std::vector<double> want(gates.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      want[i] = GatedActivationReference(activation, gate[i], up[i]);
    }
    for (const Target target : SupportedTargets()) {
      SCOPED_TRACE(::testing::Message()
                   << TargetName(target) << ' ' << Name(dtype) << ' ' << gates.size() << " kind "
                   << static_cast<int>(activation));
      const Tensor y(dtype, gates.size(), shift), again(dtype, gate.Values(), shift);
      FindGatedActivation(target, dtype,
                          activation)({gate.data(), up.data(), y.data(), gates.size()});
      FindGatedActivation(target, dtype,
                          activation)({again.data(), up.data(), again.data(), gates.size()});
      ExpectNear(y, want, dtype);
      ExpectNear(again, want, dtype);
    }
  }
}

TEST(GatedActivation, EveryCountAndAlignment) {
  for (const DType dtype : AllDTypes()) {
    for (std::size_t n = 0; n <= 2 * 16 + 1; ++n) {
      Check(dtype, Normal(n, static_cast<unsigned>(n), 0, 3), n % 4);
    }
  }
}

TEST(GatedActivation, WideRange) {
  std::vector<double> gates;
  for (double x = -60; x <= 60; x += 0.037) gates.push_back(x);
  for (const DType dtype : AllDTypes()) Check(dtype, gates, 0);
}

TEST(GatedActivation, FloatsKeepTheirDigitsInTheTail) {
  for (const Target target : SupportedTargets()) {
    for (const Activation activation : kActivations) {
      for (double x = -5; x < 0; x += 0.01) {
        const std::vector<double> one = {1.0};
        const Tensor gate(DType::kFloat32, std::vector<double>{x}), up(DType::kFloat32, one);
        const Tensor y(DType::kFloat32, 1);
        FindGatedActivation(target, DType::kFloat32,
                            activation)({gate.data(), up.data(), y.data(), 1});
        const double want = GatedActivationReference(activation, gate[0], 1.0);
        EXPECT_NEAR(y[0], want, 4e-6 * std::fabs(want)) << TargetName(target) << ' ' << x;
      }
    }
  }
}

TEST(GatedActivation, InfinityAndNan) {
  for (const DType dtype : AllDTypes()) {
    for (const Target target : SupportedTargets()) {
      for (const Activation activation : kActivations) {
        const Tensor gate(dtype, {INFINITY, -INFINITY, NAN, 0.0}), up(dtype, {1, 1, 1, INFINITY});
        const Tensor y(dtype, 4);
        FindGatedActivation(target, dtype, activation)({gate.data(), up.data(), y.data(), 4});
        EXPECT_EQ(y[0], INFINITY);
        // As the definition has it: -inf times a factor that is zero, and zero times infinity.
        EXPECT_TRUE(std::isnan(y[1]) && std::isnan(y[2]) && std::isnan(y[3]));
      }
    }
  }
}

}  // namespace
}  // namespace coreai::testing
