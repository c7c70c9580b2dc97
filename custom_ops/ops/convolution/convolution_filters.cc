#include "ops/convolution/convolution_filters.h"

#include <cstring>
#include <vector>

namespace coreai {
namespace {

/// Writes a filter in the order of windows, and its bias.
void WriteFilter(const ConvolutionProblem& p, const char* weight, const char* bias,
                 std::size_t size, char* row) {
  const std::size_t window = p.sizes.window_size();
  for (std::size_t place = 0; place < window; ++place) {
    for (std::size_t c = 0; c < p.channels; ++c, row += size) {
      std::memcpy(row, weight + (c * window + place) * size, size);
    }
  }
  std::memset(row, 0, size);
  if (bias != nullptr) std::memcpy(row, bias, size);
}

ScratchMemory PackMatrices(const ConvolutionProblem& p, const void* weight, DType dtype,
                           Target target) {
  const std::size_t matrix = GatherMmPackedBytes(target, dtype, p.depth(), p.filters);
  const auto pack = FindConvolutionPackFilters(target, dtype);
  ScratchMemory packed = AllocateScratch(p.groups * matrix);
  for (std::size_t group = 0; group < p.groups; ++group) {
    pack(static_cast<const char*>(weight) + group * p.filters * p.depth() * SizeOf(dtype),
         p.depth(), p.filters, packed.get() + group * matrix);
  }
  return packed;
}

}  // namespace

ConvolutionParts::ConvolutionParts(const ConvolutionProblem& p, std::size_t most_bytes,
                                   std::size_t most_windows, DType dtype)
    : sizes_(p.sizes), rows_(p.sizes.out_height), columns_(p.sizes.out_width) {
  const auto too_large = [&] {
    const std::size_t windows = rows_ * columns_;
    scratch_bytes_ = ConvolutionFiltersScratch(p.sizes, p.channels, windows, dtype);
    return scratch_bytes_ > most_bytes || windows > most_windows;
  };
  for (std::size_t n = 1; too_large() && rows_ > 1;) rows_ = Ceil(p.sizes.out_height, ++n);
  for (std::size_t n = 1; too_large() && columns_ > kLeastWindows;) {
    columns_ = Ceil(p.sizes.out_width, ++n);
  }
}

ScratchMemory PackFilters(const ConvolutionProblem& p, const void* weight, const void* bias,
                          DType dtype, Target target) {
  if (p.of_filters()) return PackMatrices(p, weight, dtype, target);
  const std::size_t size = SizeOf(dtype), depth = p.depth();
  const FilterBlocks blocks(p.filters, depth * size);
  const std::size_t block = blocks.size;
  ScratchMemory packed = AllocateScratch(p.groups * p.filters * depth * size);
  const ScratchMemory rows = AllocateScratch(block * depth * size);
  const auto* from = static_cast<const char*>(weight);
  const auto* one_bias = static_cast<const char*>(bias);
  for (std::size_t group = 0; group < p.groups; ++group) {
    for (std::size_t first = 0; first < p.filters; first += block) {
      const std::size_t count = std::min(block, p.filters - first);
      char* const to = packed.get() + (group * p.filters + first) * depth * size;
      // Few rows are read in place.
      char* const plain = count <= kGatherMmFewRows ? to : rows.get();
      std::vector<const void*> starts(count);
      for (std::size_t i = 0; i < count; ++i) {
        char* const row = plain + i * depth * size;
        WriteFilter(p, from, one_bias, size, row);
        starts[i] = row;
        from += (depth - 1) * size;
        if (one_bias != nullptr) one_bias += size;
      }
      if (plain != to) FindGatherMmPackLeft(target, dtype)(starts.data(), count, depth, to);
    }
  }
  return packed;
}

}  // namespace coreai
