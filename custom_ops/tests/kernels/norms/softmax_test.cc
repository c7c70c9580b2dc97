#include "kernels/norms/softmax.h"

#include "reference/softmax.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

// Runs `input` on every target, also in place, and compares with the reference.
void Check(DType dtype, std::size_t row_size, const std::vector<double>& input,
           std::size_t shift = 0) {
  const auto want = SoftmaxReference(Tensor(dtype, input).Values(), row_size);
  for (const Target target : SupportedTargets()) {
    const Tensor x(dtype, input, shift), y(dtype, input.size(), shift);
    for (const Tensor* output : {&y, &x}) {
      SCOPED_TRACE(::testing::Message() << TargetName(target) << ' ' << Name(dtype) << " row of "
                                        << row_size << " shift " << shift);
      FindSoftmax(target, dtype)({x.data(), output->data(), input.size() / row_size, row_size});
      ExpectNear(*output, want, dtype);
    }
  }
}

TEST(Softmax, EveryRowSizeAndAlignment) {
  for (const DType dtype : AllDTypes()) {
    for (std::size_t n = 1; n <= 2 * 64 + 5; ++n) {
      Check(dtype, n, Normal(3 * n, static_cast<unsigned>(n), 0, 4), n % 4);
    }
    Check(dtype, 100003, Normal(100003, 3, 0, 9), 1);
  }
}

TEST(Softmax, LargeNumbersDoNotOverflow) {
  for (const DType dtype : AllDTypes()) {
    Check(dtype, 19, Normal(4 * 19, 5, 30000, 100));
    Check(dtype, 19, Normal(4 * 19, 5, -30000, 100));
  }
}

TEST(Softmax, WhatIsHiddenIsZero) {
  for (const DType dtype : AllDTypes()) {
    for (std::size_t n = 2; n <= 40; ++n) {
      std::vector<double> input = Normal(n, static_cast<unsigned>(n));
      for (std::size_t i = 1; i < n; ++i) input[i] = -INFINITY;
      Check(dtype, n, input);
      std::swap(input.front(), input.back());
      Check(dtype, n, input);
    }
  }
}

TEST(Softmax, NanAndRowsThatAreHiddenAreNan) {
  for (const DType dtype : AllDTypes()) {
    for (const std::size_t n : {1, 2, 7, 16, 21, 70}) {
      for (std::size_t at = 0; at < n; ++at) {
        std::vector<double> input = Normal(3 * n, 5);
        input[n + at] = NAN;
        Check(dtype, n, input);
        input[n + at] = INFINITY;
        Check(dtype, n, input);
      }
      Check(dtype, n, std::vector<double>(2 * n, -INFINITY));
    }
  }
}

}  // namespace
}  // namespace coreai::testing
