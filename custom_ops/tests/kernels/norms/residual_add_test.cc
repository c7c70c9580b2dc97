#include "kernels/norms/residual_add.h"

#include "tensor.h"

namespace coreai::testing {
namespace {

TEST(ResidualAdd, EveryCountAndAlignmentRoundedOnce) {
  for (const DType dtype : AllDTypes()) {
    for (std::size_t n = 0; n <= 2 * 16 + 1; ++n) {
      const Tensor a(dtype, Normal(n, 1), n % 4), b(dtype, Normal(n, 2), n % 3);
      std::vector<double> want(n);
      for (std::size_t i = 0; i < n; ++i) want[i] = Quantize(a[i] + b[i], dtype);
      for (const Target target : SupportedTargets()) {
        SCOPED_TRACE(::testing::Message() << TargetName(target) << ' ' << Name(dtype) << ' ' << n);
        const Tensor sum(dtype, n, n % 4), again(dtype, a.Values(), n % 4);
        FindResidualAdd(target, dtype)(a.data(), b.data(), n, sum.data());
        FindResidualAdd(target, dtype)(again.data(), b.data(), n, again.data());
        EXPECT_EQ(sum.Values(), want);
        EXPECT_EQ(again.Values(), want);
      }
    }
  }
}

TEST(ResidualAdd, OverflowIsInfinite) {
  for (const Target target : SupportedTargets()) {
    const Tensor x(DType::kFloat16, {60000.0, -60000.0, INFINITY}), sum(DType::kFloat16, 3);
    FindResidualAdd(target, DType::kFloat16)(x.data(), x.data(), 3, sum.data());
    EXPECT_EQ(sum.Values(), (std::vector<double>{INFINITY, -INFINITY, INFINITY}));
  }
}

}  // namespace
}  // namespace coreai::testing
