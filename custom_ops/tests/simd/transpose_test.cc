#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/simd/transpose_test.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "simd/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Transposes a matrix of as many rows as a vector has lanes in place, and returns how many.
template <typename W>
size_t TransposeSquare(W* matrix) {
  const hn::ScalableTag<W> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  hn::Vec<decltype(d)> rows[kLanes];
  for (size_t i = 0; i < kLanes; ++i) rows[i] = hn::LoadU(d, matrix + i * kLanes);
  Transpose(d, rows);
  for (size_t i = 0; i < kLanes; ++i) hn::StoreU(rows[i], d, matrix + i * kLanes);
  return kLanes;
}

inline size_t TransposeFloats(float* matrix) { return TransposeSquare(matrix); }
inline size_t TransposeDoubles(double* matrix) { return TransposeSquare(matrix); }

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <vector>

#include "simd/dispatch.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

template <typename W>
void Check(std::size_t (*transpose)(W*)) {
  std::vector<W> matrix(64 * 64 / sizeof(W) / sizeof(W));
  for (std::size_t i = 0; i < matrix.size(); ++i) matrix[i] = static_cast<W>(i);
  const std::vector<W> before = matrix;
  const std::size_t lanes = transpose(matrix.data());
  ASSERT_LE(lanes * lanes, matrix.size());
  for (std::size_t row = 0; row < lanes; ++row) {
    for (std::size_t column = 0; column < lanes; ++column) {
      ASSERT_EQ(matrix[row * lanes + column], before[column * lanes + row]) << row << ',' << column;
    }
  }
}

TEST(Transpose, SwapsRowsAndColumns) {
  static constexpr std::size_t (*kFloats[kTargetCount])(float*) = COREAI_TARGETS(TransposeFloats);
  static constexpr std::size_t (*kDoubles[kTargetCount])(double*) =
      COREAI_TARGETS(TransposeDoubles);
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(TargetName(target));
    Check(kFloats[static_cast<std::size_t>(target)]);
    Check(kDoubles[static_cast<std::size_t>(target)]);
  }
}

}  // namespace
}  // namespace coreai::testing
#endif
