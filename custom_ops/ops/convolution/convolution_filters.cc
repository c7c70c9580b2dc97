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

}  // namespace

ScratchMemory PackFilters(const ConvolutionProblem& p, const void* weight, const void* bias,
                          DType dtype, Target target) {
  const std::size_t size = SizeOf(dtype), depth = p.depth();
  const bool as_matrix = p.of_rows();
  const FilterBlocks blocks(p.filters, depth * size);
  const std::size_t block = as_matrix ? p.filters : blocks.size;
  const std::size_t matrix = GatherMmPackedBytes(target, dtype, depth, p.filters);
  const std::size_t group_bytes = as_matrix ? matrix : p.filters * depth * size;
  ScratchMemory packed = AllocateScratch(p.groups * group_bytes);
  const ScratchMemory rows = AllocateScratch(block * depth * size);
  const auto* from = static_cast<const char*>(weight);
  const auto* one_bias = static_cast<const char*>(bias);
  for (std::size_t group = 0; group < p.groups; ++group) {
    for (std::size_t first = 0; first < p.filters; first += block) {
      const std::size_t count = std::min(block, p.filters - first);
      char* const to = packed.get() + group * group_bytes + first * depth * size;
      // Few rows are read in place.
      char* const plain = !as_matrix && count <= kGatherMmFewRows ? to : rows.get();
      std::vector<const void*> starts(count);
      for (std::size_t i = 0; i < count; ++i) {
        char* const row = plain + i * depth * size;
        WriteFilter(p, from, one_bias, size, row);
        starts[i] = row;
        from += (depth - 1) * size;
        if (one_bias != nullptr) one_bias += size;
      }
      if (as_matrix) {
        FindGatherMmPackRight(target, dtype, true)(plain, depth, count, to);
      } else if (plain != to) {
        FindGatherMmPackLeft(target, dtype)(starts.data(), count, depth, to);
      }
    }
  }
  return packed;
}

}  // namespace coreai
