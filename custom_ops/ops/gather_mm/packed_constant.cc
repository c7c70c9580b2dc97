#include "ops/gather_mm/packed_constant.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "memory/file_pages.h"
#include "ops/checks.h"
#include "ort/op.h"

namespace coreai {
namespace {

// Of the layouts in a PackedFile: another layout gets another number.
constexpr std::size_t kLayoutVersion = 2;

bool Wanted() {
  const char* setting = std::getenv("COREAI_OPS_PACK_WEIGHTS");
  return setting == nullptr || std::strcmp(setting, "0") != 0;
}

struct Matrices {
  std::size_t count = 0, depth = 0, columns = 0;
};

// The matrices of an input; none if they are not packed.
Matrices MatricesOf(const TensorView& input, bool transposed, DType dtype) {
  const std::size_t rank = input.shape.size();
  if (!input || input.type != OnnxType(dtype) || rank < 2 || !Wanted()) return {};
  const auto depth = static_cast<std::size_t>(input.shape[rank - (transposed ? 1 : 2)]);
  const auto columns = static_cast<std::size_t>(input.shape[rank - (transposed ? 2 : 1)]);
  const std::size_t count = ElementCount(input.shape, 0, rank - 2);
  return count * depth * columns == 0 ? Matrices() : Matrices{count, depth, columns};
}

}  // namespace

PackedConstant::PackedConstant(const KernelInfo& info, const TensorView& input, bool transposed,
                               DType dtype, Target target) {
  const Matrices matrices = MatricesOf(input, transposed, dtype);
  const std::size_t count = matrices.count, depth = matrices.depth, columns = matrices.columns;
  if (count == 0) return;
  const std::size_t bytes = depth * columns * SizeOf(dtype);
  const std::size_t packed_bytes = GatherMmPackedBytes(target, dtype, depth, columns);
  const auto for_matrices = [&](const auto& body) {
    for (std::size_t i = 0; i < count; ++i) {
      const char* const matrix = static_cast<const char*>(input.data) + i * bytes;
      body(matrix, i);
      ReleaseFilePages(matrix, bytes);
    }
  };
  std::shared_ptr<PackedFile> file = PackedFile::Open(info.packed_weights());
  PackedKey key = {};
  if (file != nullptr) {
    const std::string target_name = TargetName(target);
    WeightSource source;
    source.Add(target_name.data(), target_name.size());
    for (const std::size_t number : {kLayoutVersion, static_cast<std::size_t>(dtype), count, depth,
                                     columns, std::size_t{transposed}}) {
      source.Add(number);
    }
    source.Add(input.data, count * bytes);
    key = source.KeyIn(file.get());
  }
  const GatherMmPackRightKernel pack = FindGatherMmPackRight(target, dtype, transposed);
  packed_ = PackedMemory(std::move(file), key, count * packed_bytes, [&](char* packed) {
    for_matrices([&](const char* matrix, std::size_t i) {
      pack(matrix, depth, columns, packed + i * packed_bytes);
    });
  });
  original_ = input.data;
}

PackedParts::PackedParts(const TensorView& input, bool transposed, const GatherMmOfParts& kernels) {
  const auto [count, depth, columns] = MatricesOf(input, transposed, DType::kFloat32);
  if (count == 0) return;
  bytes_ = PartsBytes(depth, columns);
  HugePageMemory packed = AllocateHugePages(count * bytes_);
  for (std::size_t i = 0; i < count; ++i) {
    const auto* matrix = static_cast<const float*>(input.data) + i * depth * columns;
    const PartsRange range =
        kernels.pack_right(matrix, depth, columns, transposed, packed.get() + i * bytes_);
    if (!PartsFit(range, depth)) return;
    exact_rows_.push_back(ExactRowsOf(range));
  }
  original_ = input.data;
  packed_ = std::move(packed);
}

}  // namespace coreai
