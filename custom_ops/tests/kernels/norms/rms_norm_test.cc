#include "kernels/norms/rms_norm.h"

#include "reference/rms_norm.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

enum class Scale { kNone, kOwn, kWide };

struct Run {
  DType dtype = DType::kFloat32;
  Scale scale = Scale::kOwn;
  std::size_t row_size = 1;
  double eps = 1e-5;
  std::size_t shift = 0;
};

// Runs `input` on every target and compares with the reference.
void Check(const Run& run, const std::vector<double>& input) {
  const DType scale_dtype = run.scale == Scale::kWide ? WideDType(run.dtype) : run.dtype;
  const Tensor x(run.dtype, input, run.shift);
  const Tensor scale(scale_dtype, Normal(run.row_size, 7), run.shift);
  const bool scaled = run.scale != Scale::kNone;
  const auto want = RmsNormReference(x.Values(), scaled ? scale.Values() : std::vector<double>(),
                                     run.row_size, run.eps);
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(::testing::Message()
                 << TargetName(target) << ' ' << Name(run.dtype) << " row of " << run.row_size
                 << " shift " << run.shift << " scale " << static_cast<int>(run.scale));
    const Tensor y(run.dtype, input.size(), run.shift);
    const std::size_t rows = run.row_size == 0 ? 3 : input.size() / run.row_size;
    FindRmsNorm(target, run.dtype,
                run.scale == Scale::kWide)({x.data(), scaled ? scale.data() : nullptr, y.data(),
                                            rows, run.row_size, run.eps, run.scale == Scale::kOwn});
    ExpectNear(y, want, run.dtype);
  }
}

TEST(RmsNorm, EveryRowSizeAndAlignment) {
  for (const DType dtype : AllDTypes()) {
    for (const Scale scale : {Scale::kNone, Scale::kOwn, Scale::kWide}) {
      for (std::size_t n = 0; n <= 2 * 64 + 5; ++n) {
        Check({dtype, scale, n, 1e-5, n % 4}, Normal(3 * n, static_cast<unsigned>(n)));
      }
    }
  }
}

TEST(RmsNorm, LongRow) {
  for (const DType dtype : AllDTypes()) {
    Check({dtype, Scale::kOwn, 100003, 1e-6, 1}, Normal(100003, 3));
  }
}

TEST(RmsNorm, InfinityAndNanStayInTheirRow) {
  for (const DType dtype : AllDTypes()) {
    std::vector<double> input = Normal(4 * 19, 5);
    input[3] = INFINITY;
    input[19 + 18] = -INFINITY;
    input[2 * 19] = NAN;
    Check({dtype, Scale::kOwn, 19, 1e-5, 0}, input);
  }
}

TEST(RmsNorm, ZerosAreZeroUnlessEpsIs) {
  const std::vector<double> zeros(2 * 21, 0.0);
  for (const DType dtype : AllDTypes()) {
    Check({dtype, Scale::kNone, 21, 1e-5, 0}, zeros);
    Check({dtype, Scale::kNone, 21, 0.0, 0}, zeros);  // 0 / 0
  }
}

TEST(RmsNorm, DenormalsAreNotFlushed) {
  // Squares of float16's least numbers are ordinary floats.
  Check({DType::kFloat16, Scale::kNone, 17, 0.0, 0}, Normal(3 * 17, 9, 0, 1e-7));
  // Squares of these are denormal floats, of which few bits are left, so eps dominates.
  Check({DType::kFloat32, Scale::kNone, 17, 1e-30, 0}, Normal(3 * 17, 9, 0, 1e-20));
}

TEST(RmsNorm, ScaleAfterRoundingRoundsTwice) {
  // 1 / sqrt(1 + 1/1024) lies between two float16s; times 3, one or two roundings differ.
  const std::vector<double> input = {1.0, 1.0, 1.0, 1.0};
  const double eps = 1.0 / 1024;
  const double normalized = 1 / std::sqrt(1 + eps);
  const Tensor x(DType::kFloat16, input);
  for (double factor = 1.0; factor < 1.9; factor += 0.0078125) {
    const std::vector<double> scale(4, factor);
    const Tensor own(DType::kFloat16, scale), wide(DType::kFloat32, scale);
    for (const Target target : SupportedTargets()) {
      const Tensor y(DType::kFloat16, 4), z(DType::kFloat16, 4);
      FindRmsNorm(target, DType::kFloat16,
                  false)({x.data(), own.data(), y.data(), 1, 4, eps, true});
      FindRmsNorm(target, DType::kFloat16,
                  true)({x.data(), wide.data(), z.data(), 1, 4, eps, false});
      EXPECT_EQ(y[3], Quantize(Quantize(normalized, DType::kFloat16) * factor, DType::kFloat16));
      EXPECT_EQ(z[3], Quantize(normalized * factor, DType::kFloat16));
    }
  }
}

}  // namespace
}  // namespace coreai::testing
