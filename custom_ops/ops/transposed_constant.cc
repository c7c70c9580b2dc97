#include "ops/transposed_constant.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "ops/checks.h"
#include "ops/op.h"

namespace coreai {
namespace {

constexpr std::size_t kBlock = 32;  // of both axes, so that the lines of a block stay in the cache

// Bits only, whatever they mean; addresses may be aligned to nothing.
template <typename Bits>
void Transpose(const char* in, std::size_t rows, std::size_t columns, char* out) {
  for (std::size_t r = 0; r < rows; r += kBlock) {
    for (std::size_t c = 0; c < columns; c += kBlock) {
      for (std::size_t j = c; j < std::min(columns, c + kBlock); ++j) {
        for (std::size_t i = r; i < std::min(rows, r + kBlock); ++i) {
          std::memcpy(out + (j * rows + i) * sizeof(Bits), in + (i * columns + j) * sizeof(Bits),
                      sizeof(Bits));
        }
      }
    }
  }
}

bool Wanted() {
  const char* setting = std::getenv("COREAI_OPS_PACK_WEIGHTS");
  return setting == nullptr || std::strcmp(setting, "0") != 0;
}

}  // namespace

TransposedConstant::TransposedConstant(const TensorView& input, DType dtype) {
  const std::size_t rank = input.shape.size();
  if (!input || input.type != OnnxType(dtype) || rank < 2 || !Wanted()) return;
  const auto rows = static_cast<std::size_t>(input.shape[rank - 2]);
  const auto columns = static_cast<std::size_t>(input.shape[rank - 1]);
  const std::size_t count = ElementCount(input.shape, 0, rank - 2);
  const std::size_t bytes = rows * columns * SizeOf(dtype);
  if (count * bytes == 0) return;
  transposed_.reset(new char[count * bytes]);
  original_ = input.data;
  for (std::size_t i = 0; i < count; ++i) {
    const char* in = static_cast<const char*>(input.data) + i * bytes;
    char* out = transposed_.get() + i * bytes;
    switch (SizeOf(dtype)) {
      case 2:
        Transpose<std::uint16_t>(in, rows, columns, out);
        break;
      case 4:
        Transpose<std::uint32_t>(in, rows, columns, out);
        break;
      default:
        Transpose<std::uint64_t>(in, rows, columns, out);
    }
  }
}

}  // namespace coreai
