#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_case.h"

namespace coreai::testing {
namespace {

// Random codes and scales; sets the keys or values of a case to their values.
struct Codes {
  std::vector<std::uint8_t> bytes;
  std::vector<double> scales;

  Codes(std::vector<double>* values, std::size_t dim, unsigned bits, DType dtype, unsigned seed) {
    const std::size_t rows = dim == 0 ? 0 : values->size() / dim, width = dim * bits / 8;
    for (const double x : Normal(rows, seed)) scales.push_back(std::abs(x) / 64);
    scales = Tensor(dtype, scales).Values();
    bytes.resize(rows * width);
    unsigned state = seed;
    for (auto& byte : bytes)
      byte = static_cast<std::uint8_t>((state = state * 1103515245 + 12345) >> 16);
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t i = 0; i < dim; ++i) {
        const unsigned byte = bytes[row * width + i % width];
        const unsigned code = bits == 8 ? byte : i < width ? byte & 15 : byte >> 4;
        (*values)[row * dim + i] = (static_cast<double>(code) - (1 << (bits - 1))) * scales[row];
      }
    }
  }
};

TEST(Attention, KeysAndValuesOfFewBits) {
  for (const DType dtype : AllDTypes())
    for (const unsigned bits : {8u, 4u})
      for (const std::size_t dim : {2u, 30u, 32u, 64u, 130u})
        for (const std::size_t queries : {1u, 2u, 40u})
          for (const bool deterministic : {false, true}) {
            AttentionCase c = Sized(queries, 301, dim, dim + 2, 6, 2, 3, 2);
            Randomize(&c, dtype);
            const Codes keys(&c.key, dim, bits, dtype, 5),
                values(&c.value, dim + 2, bits, dtype, 6);
            c.causal = true;
            c.offset = 301 - static_cast<std::int64_t>(queries);
            c.window = queries == 2 ? 50 : 0;
            const auto want = AttentionReference(c);
            const AttentionTensors tensors(c, dtype, 1);
            const Tensor key_scales(dtype, keys.scales), value_scales(dtype, values.scales);
            for (const Target target : SupportedTargets()) {
              SCOPED_TRACE(Describe(c, target, dtype));
              const Tensor output(dtype, want.size());
              AttentionProblem problem = ProblemOf(c, tensors, output);
              problem.key = problem.value = nullptr;
              problem.codes = {bits, keys.bytes.data(), values.bytes.data(), key_scales.data(),
                               value_scales.data()};
              problem.deterministic = deterministic;
              RunAll(FindAttentionNbits(target, dtype, bits), problem, dtype);
              ExpectNear(output, want, dtype);
            }
          }
}

}  // namespace
}  // namespace coreai::testing
