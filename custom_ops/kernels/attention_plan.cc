#include <numeric>

#include "kernels/attention.h"
#include "kernels/attention_tiles.h"

namespace coreai {

std::size_t AttentionGroup(const AttentionProblem& a) {
  if (a.heads == 0) return 1;
  return std::gcd(a.heads / a.key_heads, a.heads / a.value_heads);
}

std::size_t AttentionTileRows(const AttentionProblem& a) {
  const std::size_t group = AttentionGroup(a);
  const std::size_t tiles = (group * a.queries + kTileRows - 1) / kTileRows;
  return a.batch * (a.heads / group) * tiles < kFewTiles ? kSmallTileRows : kTileRows;
}

std::size_t AttentionItems(const AttentionProblem& a) {
  const std::size_t group = AttentionGroup(a);
  const std::size_t rows = AttentionTileRows(a);
  const std::size_t tiles = (group * a.queries + rows - 1) / rows;
  return a.batch * (a.heads / group) * tiles;
}

std::size_t AttentionScratchBytes(const AttentionProblem& a, DType dtype) {
  if (dtype == DType::kFloat64) return AttentionScratch<double>(a, nullptr, false).bytes;
  return AttentionScratch<float>(a, nullptr, dtype != DType::kFloat32).bytes;
}

}  // namespace coreai
