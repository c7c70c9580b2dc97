#pragma once

#include <cstddef>
#include <vector>

#include "ops/gather_mm/gather_operand.h"

namespace coreai {

/// The rows of a call and of its output, sorted by the matrix that they are multiplied by.
struct SortedRows {
  std::vector<const void*> left;
  std::vector<void*> output;
  std::vector<std::size_t> starts;  ///< first row of each matrix, and the end of the last one
};

/// Where the rows of a factor are in memory, and those of the output.
struct RowMemory {
  const void* left;
  std::size_t left_bytes;  ///< of a row
  char* output;
  std::size_t output_bytes;  ///< of a row
};

/// Sorts the rows of `lhs` for each flat index of `batch`. `matrices` are the matrices of these
/// indices, below `count`. Rows of one matrix keep their order.
SortedRows SortRows(const GatherOperand& lhs, const Shape& batch,
                    const std::vector<std::size_t>& matrices, std::size_t count,
                    const RowMemory& memory);

}  // namespace coreai
