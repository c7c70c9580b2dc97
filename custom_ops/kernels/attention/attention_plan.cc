#include <algorithm>
#include <numeric>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_tiles.h"

namespace coreai {

std::size_t AttentionGroup(const AttentionProblem& a) {
  if (a.heads == 0) return 1;
  return std::gcd(a.heads / a.key_heads, a.heads / a.value_heads);
}

std::size_t AttentionSpan(const AttentionProblem& a) {
  // With heads side by side, the rows of one head are evenly spaced, and those of several are not.
  if (a.bshd && a.queries > 1) return a.queries;
  return a.queries > kTileRows / 2 ? a.queries : AttentionGroup(a) * a.queries;
}

namespace {

std::size_t CeilDiv(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

std::size_t Tiles(const AttentionProblem& a, std::size_t rows) {
  const std::size_t span = AttentionSpan(a);
  return a.batch * a.heads * a.queries / span * CeilDiv(span, rows);
}

// Tiles of a head have nearly equal sizes and consist of whole panels. Tiles of a group consist of
// whole heads, so that fewer panels contain rows of two heads.
std::size_t RowsUpTo(const AttentionProblem& a, std::size_t limit) {
  const std::size_t span = AttentionSpan(a);
  if (span != a.queries) return a.queries * std::max<std::size_t>(1, limit / a.queries);
  const std::size_t rows = CeilDiv(span, CeilDiv(span, limit));
  return CeilDiv(rows, kMaxPanelRows) * kMaxPanelRows;
}

}  // namespace

std::size_t AttentionTileRows(const AttentionProblem& a) {
  if (a.tile_registers) {
    const std::size_t rows = RowsUpTo(a, kLongTileRows);
    if (Tiles(a, rows) >= kManyTiles) return rows;
  }
  const std::size_t rows = RowsUpTo(a, kTileRows);
  return Tiles(a, rows) < kFewTiles ? RowsUpTo(a, kSmallTileRows) : rows;
}

std::size_t AttentionScratchRows(const AttentionProblem& a) {
  const bool is_long = a.queries != 0 && AttentionTileRows(a) > kTileRows;
  return is_long ? kLongTileRows : kTileRows;
}

std::size_t AttentionItems(const AttentionProblem& a) {
  return a.queries == 0 ? 0 : Tiles(a, AttentionTileRows(a));
}

std::size_t AttentionScratchBytes(const AttentionProblem& a, DType dtype) {
  if (dtype == DType::kFloat64) return AttentionScratch<double>(a, nullptr).bytes;
  const std::size_t bytes = AttentionScratch<float>(a, nullptr).bytes;
  if (dtype != DType::kBFloat16) return bytes;
  return std::max(bytes, AttentionAmxScratch(a, nullptr).bytes);
}

}  // namespace coreai
