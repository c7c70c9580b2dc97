#include "kernels/attention/rope.h"

#include "reference/rope.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

struct Run {
  DType dtype = DType::kFloat32;
  bool interleaved = false;
  std::size_t head_dim = 2;
  std::size_t half = 1;
  bool wide_table = true;
  std::size_t shift = 0;
  bool one_table_row = false;
  bool in_place = false;
};

// Rotates two heads of rows on every target and compares with the reference.
void Check(const Run& run, const std::vector<double>& input) {
  const DType table = run.wide_table ? WideDType(run.dtype) : run.dtype;
  const std::size_t rows = input.size() / run.head_dim / 2;
  const std::size_t table_rows = run.one_table_row ? 1 : rows;
  const Tensor cos(table, Normal(table_rows * run.half, 11), run.shift);
  const Tensor sin(table, Normal(table_rows * run.half, 12), run.shift);
  std::vector<double> want;
  for (std::size_t head = 0; head < 2; ++head) {
    const auto first = input.begin() + static_cast<std::ptrdiff_t>(head * rows * run.head_dim);
    const Tensor x(run.dtype, {first, first + static_cast<std::ptrdiff_t>(rows * run.head_dim)});
    const auto part = RopeReference(x.Values(), cos.Values(), sin.Values(), run.head_dim, run.half,
                                    run.interleaved);
    want.insert(want.end(), part.begin(), part.end());
  }
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(::testing::Message()
                 << TargetName(target) << ' ' << Name(run.dtype) << " half " << run.half << " of "
                 << run.head_dim << (run.interleaved ? " interleaved" : " halves"));
    const Tensor x(run.dtype, input, run.shift);
    const Tensor y(run.dtype, input.size(), run.shift);
    const Tensor& out = run.in_place ? x : y;
    FindRope(target, run.dtype, run.wide_table, run.interleaved)(
        {x.data(), cos.data(), sin.data(), out.data(), 2, rows, run.head_dim, run.half,
         rows * run.head_dim, run.one_table_row ? 0 : run.half, run.one_table_row ? 0 : run.half});
    ExpectNear(out, want, run.dtype);
  }
}

TEST(Rope, EveryWidthAndAlignment) {
  for (const DType dtype : AllDTypes()) {
    for (const bool interleaved : {false, true}) {
      for (std::size_t half = 0; half <= 2 * 16 + 3; ++half) {
        for (const std::size_t rest : {std::size_t{0}, 1 + half % 37}) {
          const std::size_t head_dim = std::max<std::size_t>(1, 2 * half + rest);
          const auto input = Normal(2 * 3 * head_dim, static_cast<unsigned>(half));
          Check({dtype, interleaved, head_dim, half, half % 2 == 0, half % 4, half % 3 == 0,
                 half % 5 == 0},
                input);
        }
      }
    }
  }
}

TEST(Rope, NoRows) {
  for (const DType dtype : AllDTypes()) Check({dtype, false, 8, 4}, {});
}

TEST(Rope, InfinityAndNanStayInTheirPair) {
  std::vector<double> input = Normal(2 * 24, 3);
  input[1] = INFINITY;
  input[24 + 7] = NAN;
  for (const DType dtype : AllDTypes()) {
    for (const bool interleaved : {false, true}) Check({dtype, interleaved, 24, 12}, input);
  }
}

TEST(Rope, LanesThatPassThroughKeepTheirBits) {
  // A signalling NaN, which arithmetic would quieten, and the least denormal.
  const std::uint16_t bits[] = {0, 0, 0x7C01, 0x0001};
  for (const Target target : SupportedTargets()) {
    std::uint16_t out[4] = {};
    const float one[] = {1.0f}, zero[] = {0.0f};
    FindRope(target, DType::kFloat16, true, false)({bits, one, zero, out, 1, 1, 4, 1, 4, 1, 1});
    EXPECT_EQ(out[2], 0x7C01) << TargetName(target);
    EXPECT_EQ(out[3], 0x0001) << TargetName(target);
  }
}

TEST(RopeAngles, TablesOfRoundedProducts) {
  const std::vector<double> positions = {0, 1, 2, 511, 4095, 131071, -77};
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (std::size_t half = 1; half <= 2 * 8 + 3; ++half) {
      std::vector<double> frequencies(half);
      for (std::size_t i = 0; i < half; ++i) {
        frequencies[i] = std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
      }
      const Tensor p(dtype, positions, half % 4), f(dtype, frequencies, half % 4);
      std::vector<double> cos, sin;
      for (std::size_t row = 0; row < positions.size(); ++row) {
        for (std::size_t i = 0; i < half; ++i) {
          const double angle = Quantize(p[row] * f[i], dtype);
          cos.push_back(std::cos(angle));
          sin.push_back(std::sin(angle));
        }
      }
      for (const Target target : SupportedTargets()) {
        SCOPED_TRACE(::testing::Message() << TargetName(target) << ' ' << Name(dtype));
        const Tensor c(dtype, cos.size(), half % 4), s(dtype, sin.size(), half % 4);
        FindRopeAngles(target,
                       dtype)({p.data(), f.data(), c.data(), s.data(), positions.size(), half});
        ExpectNear(c, cos, dtype);
        ExpectNear(s, sin, dtype);
      }
    }
  }
}

}  // namespace
}  // namespace coreai::testing
