#include "ops/gather_mm/sorted_rows.h"

namespace coreai {

// A counting sort.
SortedRows SortRows(const GatherOperand& lhs, const Shape& batch,
                    const std::vector<std::size_t>& matrices, std::size_t count,
                    const RowMemory& memory) {
  const auto places = PlacesIn({lhs.shape().begin(), lhs.shape().end() - 2}, batch);
  const std::size_t rows = lhs.rows();
  SortedRows sorted;
  sorted.left.resize(places.size() * rows);
  sorted.output.resize(places.size() * rows);
  sorted.starts.assign(count + 1, 0);
  for (const std::size_t matrix : matrices) sorted.starts[matrix + 1] += rows;
  for (std::size_t i = 0; i < count; ++i) sorted.starts[i + 1] += sorted.starts[i];
  std::vector<std::size_t> end = sorted.starts;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::size_t first = lhs.Matrix(places[i]) * rows;
    std::size_t& to = end[matrices[i]];
    for (std::size_t row = 0; row < rows; ++row, ++to) {
      sorted.left[to] = static_cast<const char*>(memory.left) + (first + row) * memory.left_bytes;
      sorted.output[to] = memory.output + (i * rows + row) * memory.output_bytes;
    }
  }
  return sorted;
}

}  // namespace coreai
