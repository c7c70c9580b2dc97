#include "kernels/gather_mm/widen.h"

#include "tensor.h"

namespace coreai::testing {
namespace {

TEST(Widen, EveryCountAndAlignmentExactly) {
  for (const DType dtype : AllDTypes()) {
    for (std::size_t n = 0; n <= 2 * 16 + 1; ++n) {
      std::vector<double> values = Normal(n, static_cast<unsigned>(n));
      if (n > 3) values[3] = -INFINITY;
      if (n > 9) values[9] = std::ldexp(1.0, -20);  // denormal in float16
      const Tensor x(dtype, values, n % 4);
      for (const Target target : SupportedTargets()) {
        const Tensor y(WideDType(dtype), n, n % 3);
        FindWiden(target, dtype)(x.data(), n, y.data());
        EXPECT_EQ(y.Values(), x.Values()) << TargetName(target) << ' ' << Name(dtype) << ' ' << n;
      }
    }
  }
}

}  // namespace
}  // namespace coreai::testing
