#include "kernels/gather_mm.h"

#include "reference/gather_mm.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

struct Run {
  DType dtype = DType::kFloat32;
  bool transposed = false;
  std::size_t rows = 1;
  std::size_t depth = 1;
  std::size_t columns = 1;
  std::size_t shift = 0;
};

// Multiplies on every target, in two calls that share the columns, and compares with the reference.
void Check(const Run& run) {
  const DType wide = WideDType(run.dtype);
  const double deviation = 1 / std::sqrt(static_cast<double>(run.depth));
  const Tensor left(wide, Tensor(run.dtype, Normal(run.rows * run.depth, 5)).Values(), run.shift);
  const Tensor right(run.dtype, Normal(run.depth * run.columns, 6, 0, deviation), run.shift);
  const auto want = GatherMmReference(left.Values(), right.Values(), run.rows, run.depth,
                                      run.columns, run.transposed);
  // Rows in reverse order, and output rows a little apart, as they are gathered from anywhere.
  const std::size_t stride = run.columns + 3;
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(::testing::Message()
                 << TargetName(target) << ' ' << Name(run.dtype) << ' ' << run.rows << 'x'
                 << run.depth << 'x' << run.columns << (run.transposed ? " transposed" : "")
                 << " shift " << run.shift);
    const Tensor output(run.dtype, run.rows * stride, run.shift);
    std::vector<const void*> lefts;
    std::vector<void*> outputs;
    for (std::size_t r = run.rows; r-- > 0;) {
      lefts.push_back(static_cast<const char*>(left.data()) + r * run.depth * SizeOf(wide));
      outputs.push_back(static_cast<char*>(output.data()) + r * stride * SizeOf(run.dtype));
    }
    const Tensor packed(wide, GatherMmPackedRows(run.rows) * run.depth);
    FindGatherMmPack(target, wide)(lefts.data(), run.rows, run.depth, packed.data());
    const Tensor scratch(DType::kFloat32, kGatherMmScratchBytes / 4);
    const std::size_t cut = run.columns / 3;
    for (const auto& part : {std::pair<std::size_t, std::size_t>{0, cut}, {cut, run.columns}}) {
      FindGatherMm(target, run.dtype, run.transposed)(
          {lefts.data(), packed.data(), outputs.data(), right.data(), run.rows, run.depth,
           run.columns, part.first, part.second},
          scratch.data());
    }
    Tensor got(run.dtype, want.size());
    for (std::size_t r = 0; r < run.rows; ++r) {
      for (std::size_t c = 0; c < run.columns; ++c) {
        got.Set(r * run.columns + c, output[r * stride + c]);
      }
    }
    ExpectNear(got, want, run.dtype);
  }
}

TEST(GatherMm, EveryNumberOfRows) {
  for (const DType dtype : AllDTypes()) {
    for (const bool transposed : {false, true}) {
      for (std::size_t rows = 0; rows <= 20; ++rows) Check({dtype, transposed, rows, 7, 11});
      for (const std::size_t rows : {63, 64, 65, 192}) Check({dtype, transposed, rows, 5, 9});
    }
  }
}

TEST(GatherMm, EveryNumberOfColumnsAndAlignment) {
  for (const DType dtype : AllDTypes()) {
    for (const bool transposed : {false, true}) {
      for (const std::size_t rows : {1, 2, 3, 4, 13}) {
        for (std::size_t columns = 1; columns <= 2 * 16 + 1; ++columns) {
          Check({dtype, transposed, rows, 6, columns, columns % 4});
        }
        for (const std::size_t columns : {64, 100, 1025}) {
          Check({dtype, transposed, rows, 3, columns, 1});
        }
      }
    }
  }
}

TEST(GatherMm, EveryDepth) {
  for (const DType dtype : AllDTypes()) {
    for (const bool transposed : {false, true}) {
      for (const std::size_t rows : {1, 2, 4, 7}) {
        for (std::size_t depth = 1; depth <= 2 * 16 + 1; ++depth) {
          Check({dtype, transposed, rows, depth, 5, depth % 4});
        }
        for (const std::size_t depth : {512, 513, 1200})
          Check({dtype, transposed, rows, depth, 70});
      }
    }
  }
}

TEST(GatherMm, SumsOfManyRowsDoNotDependOnTheOtherRows) {
  const std::size_t depth = 700, columns = 40, most = 9;
  const Tensor left(DType::kFloat32, Normal(most * depth, 1));
  const Tensor right(DType::kFloat32, Normal(depth * columns, 2));
  const Tensor scratch(DType::kFloat32, kGatherMmScratchBytes / 4);
  for (const Target target : SupportedTargets()) {
    std::vector<double> first;
    for (std::size_t rows = kGatherMmFewRows + 1; rows <= most; ++rows) {
      const Tensor output(DType::kFloat32, rows * columns);
      std::vector<const void*> lefts;
      std::vector<void*> outputs;
      for (std::size_t r = 0; r < rows; ++r) {
        lefts.push_back(static_cast<const float*>(left.data()) + r * depth);
        outputs.push_back(static_cast<float*>(output.data()) + r * columns);
      }
      FindGatherMm(target, DType::kFloat32, false)(
          {lefts.data(), nullptr, outputs.data(), right.data(), rows, depth, columns, 0, columns},
          scratch.data());
      std::vector<double> row = output.Values();
      row.resize(columns);
      if (first.empty()) first = row;
      EXPECT_EQ(row, first) << TargetName(target) << ' ' << rows;
    }
  }
}

TEST(GatherMm, InfinityAndNanStayInTheirRowAndColumn) {
  for (const bool transposed : {false, true}) {
    for (const std::size_t rows : {1, 3, 6}) {
      std::vector<double> l(rows * 20, 1.0), r(20 * 35, 1.0);
      l[3] = INFINITY;
      r[transposed ? 34 * 20 + 1 : 35 + 34] = NAN;
      const Tensor left(DType::kFloat32, l), right(DType::kFloat32, r);
      const auto want = GatherMmReference(l, r, rows, 20, 35, transposed);
      const Tensor scratch(DType::kFloat32, kGatherMmScratchBytes / 4);
      for (const Target target : SupportedTargets()) {
        const Tensor output(DType::kFloat32, rows * 35);
        std::vector<const void*> lefts;
        std::vector<void*> outputs;
        for (std::size_t i = 0; i < rows; ++i) {
          lefts.push_back(static_cast<const float*>(left.data()) + i * 20);
          outputs.push_back(static_cast<float*>(output.data()) + i * 35);
        }
        const Tensor packed(DType::kFloat32, GatherMmPackedRows(rows) * 20);
        FindGatherMmPack(target, DType::kFloat32)(lefts.data(), rows, 20, packed.data());
        FindGatherMm(target, DType::kFloat32, transposed)(
            {lefts.data(), packed.data(), outputs.data(), right.data(), rows, 20, 35, 0, 35},
            scratch.data());
        ExpectNear(output, want, DType::kFloat32);
      }
    }
  }
}

}  // namespace
}  // namespace coreai::testing
