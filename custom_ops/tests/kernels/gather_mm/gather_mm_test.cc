#include "kernels/gather_mm/gather_mm.h"

#include "reference/gather_mm.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

using Layout = GatherMmLayout;

struct Product {
  DType dtype = DType::kFloat32;
  Layout layout = Layout::kRows;
  std::size_t rows = 1;
  std::size_t depth = 1;
  std::size_t columns = 1;
  std::size_t shift = 0;
};

constexpr Layout kLayouts[kGatherMmLayoutCount] = {Layout::kRows, Layout::kTransposed,
                                                   Layout::kPacked};
const char* const kLayoutNames[kGatherMmLayoutCount] = {"rows", "transposed", "packed"};

// Both factors as a kernel takes them. A packed matrix is packed from a transposed one if the
// number of columns is odd, else from a plain one.
struct Factors {
  std::vector<const void*> lefts;
  Tensor packed_left, packed_right;
  const void* right;

  // `matrix` is [depth, columns], or [columns, depth] if Transposed() says so.
  Factors(Target target, const Tensor& left, const Tensor& matrix, const Product& run)
      : packed_left(DType::kBFloat16, PackedBytes(target, run) / 2),
        packed_right(run.dtype, GatherMmPackedBytes(target, run.dtype, run.depth, run.columns) /
                                    SizeOf(run.dtype)),
        right(matrix.data()) {
    const GatherMmLeft kind = GatherMmLeftOf(target, run.dtype);
    // In reverse order, as rows are gathered from anywhere.
    for (std::size_t r = run.rows; r-- > 0;) {
      lefts.push_back(static_cast<const char*>(left.data()) + r * run.depth * SizeOf(kind.dtype));
    }
    if (run.rows > kind.few_rows) {
      FindGatherMmPackLeft(target, run.dtype)(lefts.data(), run.rows, run.depth,
                                              packed_left.data());
    }
    if (run.layout != Layout::kPacked) return;
    FindGatherMmPackRight(target, run.dtype, Transposed(run))(right, run.depth, run.columns,
                                                              packed_right.data());
    right = packed_right.data();
  }

  static std::size_t PackedBytes(Target target, const Product& run) {
    const GatherMmLeft kind = GatherMmLeftOf(target, run.dtype);
    return kind.PackedRows(run.rows) * kind.RowBytes(run.depth);
  }

  static bool Transposed(const Product& run) {
    return run.layout == Layout::kTransposed ||
           (run.layout == Layout::kPacked && run.columns % 2 == 1);
  }
};

// Multiplies on every target, in two calls that share the columns, and compares with the reference.
void Check(const Product& run) {
  const double deviation = 1 / std::sqrt(static_cast<double>(run.depth));
  const std::vector<double> rows = Tensor(run.dtype, Normal(run.rows * run.depth, 5)).Values();
  const Tensor right(run.dtype, Normal(run.depth * run.columns, 6, 0, deviation), run.shift);
  const auto want = GatherMmReference(rows, right.Values(), run.rows, run.depth, run.columns,
                                      Factors::Transposed(run));
  // Output rows lie a little apart.
  const std::size_t stride = run.columns + 3;
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(::testing::Message()
                 << TargetName(target) << ' ' << Name(run.dtype) << ' ' << run.rows << 'x'
                 << run.depth << 'x' << run.columns << ' '
                 << kLayoutNames[static_cast<std::size_t>(run.layout)] << " shift " << run.shift);
    const Tensor output(run.dtype, run.rows * stride, run.shift);
    std::vector<void*> outputs;
    for (std::size_t r = run.rows; r-- > 0;) {
      outputs.push_back(static_cast<char*>(output.data()) + r * stride * SizeOf(run.dtype));
    }
    const Tensor left(GatherMmLeftOf(target, run.dtype).dtype, rows, run.shift);
    const Factors factors(target, left, right, run);
    const Tensor scratch(DType::kFloat32, kGatherMmScratchBytes / 4);
    const std::size_t third = run.columns / 3;
    const std::size_t cut =
        run.layout == Layout::kPacked ? third / kGatherMmColumnStep * kGatherMmColumnStep : third;
    for (const auto& part : {std::pair<std::size_t, std::size_t>{0, cut}, {cut, run.columns}}) {
      FindGatherMm(target, run.dtype, run.layout)(
          {factors.lefts.data(), factors.packed_left.data(), outputs.data(), factors.right,
           run.rows, run.depth, run.columns, part.first, part.second},
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

// The bits of a row of a packed product do not depend on the number of rows.
TEST(GatherMm, RowsOfAPackedMatrixAreSummedInOneOrder) {
  const std::size_t depth = 301;
  for (const Target target : SupportedTargets()) {
    for (const std::size_t columns : {1u, 47u, 200u, 500u}) {
      const Tensor left(DType::kFloat32, Normal(20 * depth, 5));
      const Tensor matrix(DType::kFloat32, Normal(depth * columns, 6));
      const Tensor scratch(DType::kFloat32, kGatherMmScratchBytes / 4);
      std::vector<double> whole;
      for (const std::size_t rows : {20u, 1u, 2u, 3u, 4u, 5u}) {
        SCOPED_TRACE(::testing::Message() << TargetName(target) << ' ' << rows << 'x' << columns);
        const Product run = {DType::kFloat32, Layout::kPacked, rows, depth, columns};
        const Tensor packed(DType::kFloat32,
                            GatherMmPackedBytes(target, run.dtype, depth, columns) / 4);
        FindGatherMmPackRight(target, run.dtype, false)(matrix.data(), depth, columns,
                                                        packed.data());
        const Tensor packed_left(DType::kFloat32, Factors::PackedBytes(target, run) / 4);
        const Tensor output(DType::kFloat32, rows * columns);
        std::vector<const void*> lefts;
        std::vector<void*> outputs;
        for (std::size_t r = 0; r < rows; ++r) {
          lefts.push_back(static_cast<const char*>(left.data()) + r * depth * 4);
          outputs.push_back(static_cast<char*>(output.data()) + r * columns * 4);
        }
        FindGatherMmPackLeft(target, run.dtype)(lefts.data(), rows, depth, packed_left.data());
        FindGatherMm(target, run.dtype, run.layout)(
            {lefts.data(), packed_left.data(), outputs.data(), packed.data(), rows, depth, columns,
             0, columns},
            scratch.data());
        if (whole.empty()) whole = output.Values();
        for (std::size_t i = 0; i < rows * columns; ++i) EXPECT_EQ(output[i], whole[i]) << i;
      }
    }
  }
}

TEST(GatherMm, EveryNumberOfRows) {
  for (const DType dtype : AllDTypes()) {
    for (const Layout layout : kLayouts) {
      for (std::size_t rows = 0; rows <= 20; ++rows) Check({dtype, layout, rows, 7, 11});
      for (const std::size_t rows : {63u, 64u, 65u, 192u}) Check({dtype, layout, rows, 5, 9});
    }
  }
}

TEST(GatherMm, EveryNumberOfColumnsAndAlignment) {
  for (const DType dtype : AllDTypes()) {
    for (const Layout layout : kLayouts) {
      for (const std::size_t rows : {1u, 2u, 3u, 4u, 13u}) {
        for (std::size_t columns = 1; columns <= 2 * 16 + 1; ++columns) {
          Check({dtype, layout, rows, 6, columns, columns % 4});
        }
        for (const std::size_t columns : {47u, 48u, 49u, 64u, 100u, 385u, 1025u}) {
          Check({dtype, layout, rows, 3, columns, 1});
        }
      }
    }
  }
}

TEST(GatherMm, EveryDepth) {
  for (const DType dtype : AllDTypes()) {
    for (const Layout layout : kLayouts) {
      for (const std::size_t rows : {1u, 2u, 4u, 7u}) {
        for (std::size_t depth = 1; depth <= 2 * 16 + 1; ++depth) {
          Check({dtype, layout, rows, depth, 5, depth % 4});
        }
        for (const std::size_t depth : {512u, 513u, 1200u}) Check({dtype, layout, rows, depth, 70});
      }
    }
  }
}

TEST(GatherMm, SumsOfManyRowsDoNotDependOnTheOtherRows) {
  const std::size_t depth = 700, columns = 40, most = 17;
  const Tensor left(DType::kFloat32, Normal(most * depth, 1));
  const Tensor right(DType::kFloat32, Normal(depth * columns, 2));
  const Tensor scratch(DType::kFloat32, kGatherMmScratchBytes / 4);
  for (const Layout layout : kLayouts) {
    for (const Target target : SupportedTargets()) {
      std::vector<double> first;
      for (std::size_t rows = kGatherMmFewRows + 1; rows <= most; ++rows) {
        const Tensor output(DType::kFloat32, rows * columns);
        std::vector<void*> outputs;
        for (std::size_t r = rows; r-- > 0;) {
          outputs.push_back(static_cast<float*>(output.data()) + r * columns);
        }
        const Factors factors(target, left, right, {DType::kFloat32, layout, rows, depth, columns});
        FindGatherMm(target, DType::kFloat32, layout)(
            {factors.lefts.data(), factors.packed_left.data(), outputs.data(), factors.right, rows,
             depth, columns, 0, columns},
            scratch.data());
        std::vector<double> row = output.Values();
        row.resize(columns);
        if (first.empty()) first = row;
        EXPECT_EQ(row, first) << TargetName(target) << ' ' << rows;
      }
    }
  }
}

TEST(GatherMm, InfinityAndNanStayInTheirRowAndColumn) {
  for (const Layout layout : kLayouts) {
    for (const std::size_t rows : {1u, 3u, 6u}) {
      const Product run = {DType::kFloat32, layout, rows, 20, 35};
      const bool transposed = Factors::Transposed(run);
      std::vector<double> l(rows * 20, 1.0), r(20 * 35, 1.0);
      l[3] = INFINITY;
      r[transposed ? 34 * 20 + 1 : 35 + 34] = NAN;
      const Tensor left(DType::kFloat32, l), right(DType::kFloat32, r);
      const auto want = GatherMmReference(l, r, rows, 20, 35, transposed);
      const Tensor scratch(DType::kFloat32, kGatherMmScratchBytes / 4);
      for (const Target target : SupportedTargets()) {
        const Tensor output(DType::kFloat32, rows * 35);
        std::vector<void*> outputs;
        for (std::size_t i = rows; i-- > 0;) {
          outputs.push_back(static_cast<float*>(output.data()) + i * 35);
        }
        const Factors factors(target, left, right, run);
        FindGatherMm(target, DType::kFloat32, layout)(
            {factors.lefts.data(), factors.packed_left.data(), outputs.data(), factors.right, rows,
             20, 35, 0, 35},
            scratch.data());
        ExpectNear(output, want, DType::kFloat32);
      }
    }
  }
}

}  // namespace
}  // namespace coreai::testing
