// Rows of a table by their indices, plus an optional bias, and the sum of each row.

#include "kit/kernel.h"

namespace names = coreai::declared;

template <class T>
class Gathered {
 public:
  explicit Gathered(const coreai::Attributes&) {}

  void Compute(const coreai::Context& context) const {
    coreai::Dispatch<std::int32_t, std::int64_t>(
        context.Type(names::kRowsInput),
        [&](auto zero) { Run(context, context.Input<decltype(zero)>(names::kRowsInput)); });
  }

 private:
  template <class Index>
  static void Run(const coreai::Context& context, const coreai::Tensor<Index>& rows) {
    const auto table = context.Input<T>(names::kTableInput);
    const auto bias = context.OptionalInput<T>(names::kBiasInput);
    const std::int64_t count = rows.dim(0), width = table.dim(-1);
    T* out = context.Output<T>(0, {count, width});
    T* sums = context.Output<T>(1, {count});
    context.ParallelFor(count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        coreai::Wide<T> sum = 0;
        for (std::int64_t column = 0; column < width; ++column) {
          coreai::Wide<T> value = table[rows[row] * width + column];
          if (bias) value += bias[column % bias.size];
          sum += value;
          out[row * width + column] = static_cast<T>(value);
        }
        sums[row] = static_cast<T>(sum);
      }
    });
  }
};

COREAI_KERNEL(Gathered)
