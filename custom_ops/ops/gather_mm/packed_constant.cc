#include "ops/gather_mm/packed_constant.h"

#include <cstdlib>
#include <cstring>

#include "memory/file_pages.h"
#include "ops/checks.h"
#include "ort/op.h"

namespace coreai {
namespace {

bool Wanted() {
  const char* setting = std::getenv("COREAI_OPS_PACK_WEIGHTS");
  return setting == nullptr || std::strcmp(setting, "0") != 0;
}

}  // namespace

PackedConstant::PackedConstant(const TensorView& input, bool transposed, DType dtype,
                               Target target) {
  const std::size_t rank = input.shape.size();
  if (!input || input.type != OnnxType(dtype) || rank < 2 || !Wanted()) return;
  const auto depth = static_cast<std::size_t>(input.shape[rank - (transposed ? 1 : 2)]);
  const auto columns = static_cast<std::size_t>(input.shape[rank - (transposed ? 2 : 1)]);
  const std::size_t count = ElementCount(input.shape, 0, rank - 2);
  if (count * depth * columns == 0) return;
  const std::size_t bytes = depth * columns * SizeOf(dtype);
  const std::size_t packed_bytes = GatherMmPackedBytes(target, dtype, depth, columns);
  packed_ = AllocateHugePages(count * packed_bytes);
  original_ = input.data;
  const GatherMmPackRightKernel pack = FindGatherMmPackRight(target, dtype, transposed);
  for (std::size_t i = 0; i < count; ++i) {
    const char* const matrix = static_cast<const char*>(input.data) + i * bytes;
    pack(matrix, depth, columns, packed_.get() + i * packed_bytes);
    ReleaseFilePages(matrix, bytes);
  }
}

}  // namespace coreai
