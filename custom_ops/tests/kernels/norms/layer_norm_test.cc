#include "kernels/norms/layer_norm.h"

#include "reference/layer_norm.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

struct Run {
  DType dtype = DType::kFloat32;
  bool wide = false;
  bool scale = true;
  bool bias = true;
  std::size_t row_size = 1;
  double eps = 1e-5;
  std::size_t shift = 0;
};

// Runs `input` on every target and compares with the reference.
void Check(const Run& run, const std::vector<double>& input) {
  const DType affine = run.wide ? WideDType(run.dtype) : run.dtype;
  const Tensor x(run.dtype, input, run.shift);
  const Tensor scale(affine, Normal(run.row_size, 7), run.shift);
  const Tensor bias(affine, Normal(run.row_size, 8), run.shift);
  const std::vector<double> none;
  const auto want = LayerNormReference(x.Values(), run.scale ? scale.Values() : none,
                                       run.bias ? bias.Values() : none, run.row_size, run.eps);
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(::testing::Message() << TargetName(target) << ' ' << Name(run.dtype) << " row of "
                                      << run.row_size << " shift " << run.shift);
    const Tensor y(run.dtype, input.size(), run.shift);
    const std::size_t rows = run.row_size == 0 ? 3 : input.size() / run.row_size;
    FindLayerNorm(target, run.dtype, run.wide)({x.data(), run.scale ? scale.data() : nullptr,
                                                run.bias ? bias.data() : nullptr, y.data(), rows,
                                                run.row_size, run.eps});
    ExpectNear(y, want, run.dtype);
  }
}

TEST(LayerNorm, EveryRowSizeAndAlignment) {
  for (const DType dtype : AllDTypes()) {
    for (std::size_t n = 0; n <= 2 * 64 + 5; ++n) {
      // eps keeps rows of one element, which are all mean, away from 0 / 0.
      const auto input = Normal(3 * n, static_cast<unsigned>(n));
      Check({dtype, false, true, true, n, 1e-3, n % 4}, input);
      Check({dtype, true, true, true, n, 1e-3, n % 3}, input);
    }
  }
}

TEST(LayerNorm, ScaleOrBiasMayBeAbsent) {
  for (const DType dtype : AllDTypes()) {
    for (const std::size_t n : {1u, 7u, 16u, 37u}) {
      const auto input = Normal(2 * n, 4);
      Check({dtype, false, true, false, n, 1e-3, 0}, input);
      Check({dtype, false, false, true, n, 1e-3, 0}, input);
      Check({dtype, true, false, false, n, 1e-3, 0}, input);
    }
  }
}

TEST(LayerNorm, LargeMeanKeepsTheVariance) {
  // One pass over squares would lose everything: 3000^2 has no bits left for a variance of 1.
  std::vector<double> input(2 * 40);
  for (std::size_t i = 0; i < input.size(); ++i) input[i] = 3000 + (i % 2 == 0 ? 1.0 : -1.0);
  Check({DType::kFloat32, false, true, true, 40, 1e-5, 0}, input);
  Check({DType::kFloat64, false, true, true, 40, 1e-5, 0}, input);
}

TEST(LayerNorm, LongRow) {
  for (const DType dtype : AllDTypes()) {
    Check({dtype, false, true, true, 100003, 1e-5, 1}, Normal(100003, 3));
  }
}

TEST(LayerNorm, InfinityAndNanStayInTheirRow) {
  for (const DType dtype : AllDTypes()) {
    std::vector<double> input = Normal(4 * 19, 5);
    input[3] = INFINITY;
    input[19 + 18] = -INFINITY;
    input[2 * 19] = NAN;
    Check({dtype, false, true, true, 19, 1e-5, 0}, input);
  }
}

TEST(LayerNorm, ConstantRowGivesTheBias) {
  for (const DType dtype : AllDTypes()) {
    Check({dtype, false, true, true, 32, 1e-5, 0}, std::vector<double>(64, 2.0));
  }
}

}  // namespace
}  // namespace coreai::testing
