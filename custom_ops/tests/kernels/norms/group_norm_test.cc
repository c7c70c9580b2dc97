#include "kernels/norms/group_norm.h"

#include "reference/group_norm.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

struct Run {
  DType dtype = DType::kFloat32;
  std::size_t channels = 1;
  bool scale = true;
  bool bias = true;
  std::size_t shift = 0;
  double eps = 1e-5;
};

// Normalizes on every target, also in place, and compares with the reference.
void Check(const Run& run, const std::vector<double>& input) {
  const DType wide = WideDType(run.dtype);
  const Tensor scale(wide, Normal(run.channels, 3), run.shift);
  const Tensor bias(wide, Normal(run.channels, 4), run.shift);
  const std::vector<double> none;
  const auto want =
      GroupNormReference(Tensor(run.dtype, input).Values(), run.scale ? scale.Values() : none,
                         run.bias ? bias.Values() : none, run.channels, run.eps);
  for (const Target target : SupportedTargets()) {
    const Tensor x(run.dtype, input, run.shift), y(run.dtype, input.size(), run.shift);
    for (const Tensor* output : {&y, &x}) {
      SCOPED_TRACE(::testing::Message() << TargetName(target) << ' ' << Name(run.dtype) << ' '
                                        << run.channels << " of " << input.size());
      FindGroupNorm(target, run.dtype)({x.data(), run.scale ? scale.data() : nullptr,
                                        run.bias ? bias.data() : nullptr, output->data(),
                                        run.channels, input.size() / run.channels, run.eps});
      ExpectNear(*output, want, run.dtype);
    }
  }
}

TEST(GroupNorm, EverySizeAndAlignment) {
  for (const DType dtype : AllDTypes()) {
    for (std::size_t places = 1; places <= 2 * 16 + 1; ++places) {
      const auto input = Normal(3 * places, static_cast<unsigned>(places), 1);
      Check({dtype, 3, places % 2 == 0, places % 3 != 0, places % 4}, input);
    }
    Check({dtype, 40}, Normal(40, 8));
    Check({dtype, 1}, Normal(70001, 9));
  }
}

TEST(GroupNorm, AConstantGroupIsItsBias) {
  for (const DType dtype : AllDTypes()) Check({dtype, 2}, std::vector<double>(2 * 19, 0.75));
}

TEST(GroupNorm, NanAndInfinityFillTheGroup) {
  for (const DType dtype : AllDTypes()) {
    std::vector<double> input = Normal(2 * 21, 5);
    input[5] = NAN;
    Check({dtype, 2}, input);
    input[5] = INFINITY;
    Check({dtype, 2}, std::vector<double>(4, INFINITY));
  }
}

}  // namespace
}  // namespace coreai::testing
