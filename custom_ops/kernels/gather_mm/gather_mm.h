#pragma once

#include <cstddef>

#include "kernels/dtype.h"
#include "simd/target.h"

namespace coreai {

/// Memory layout of the matrix.
enum class GatherMmLayout {
  kRows,        ///< [depth, columns]
  kTransposed,  ///< [columns, depth]
  kPacked,      ///< written by GatherMmPackRight
};
inline constexpr std::size_t kGatherMmLayoutCount = 3;

/// The rows of the left factor as kernels for a target and dtype take them, and how products are
/// divided among calls.
struct GatherMmLeft {
  DType dtype;              ///< of their elements
  std::size_t few_rows;     ///< up to this number they are read in place, more are packed
  std::size_t max_rows;     ///< of a call
  std::size_t block_step;   ///< rows of calls are best multiples of this
  std::size_t row_step;     ///< packed rows are padded to multiples of these
  std::size_t depth_step;   ///<
  std::size_t column_step;  ///< calls that share a packed matrix begin at multiples of this
  std::size_t bytes;        ///< of an element that is packed

  std::size_t PackedRows(std::size_t rows) const {
    return (rows + row_step - 1) / row_step * row_step;
  }
  /// Bytes of a packed row.
  std::size_t RowBytes(std::size_t depth) const {
    return (depth + depth_step - 1) / depth_step * depth_step * bytes;
  }
};
GatherMmLeft GatherMmLeftOf(Target target, DType dtype);

/// Rows at any addresses, multiplied by one matrix. Pointers need only the alignment of their
/// element, pointers to packed data 64 bytes. Output overlaps nothing.
struct GatherMmTile {
  const void* const* left;   ///< [rows] rows of `depth` elements, of the type of GatherMmLeft
  const void* packed_left;   ///< the same rows written by GatherMmPackLeft, or null for few rows
  void* const* output;       ///< [rows] rows of `columns` elements, of the kernel's type
  const void* right;         ///< the matrix, of the kernel's type
  std::size_t rows;          ///< at most GatherMmLeft::max_rows
  std::size_t depth;         ///< at least 1
  std::size_t columns;       ///<
  std::size_t first_column;  ///< the columns to compute and store are [first_column, last_column);
  std::size_t last_column;   ///< if packed, first_column is a multiple of column_step
};

/// Maximum number of rows per call. More rows amortize the cost of fetching the matrix, as long as
/// they fit into the second-level cache.
inline constexpr std::size_t kGatherMmMaxRows = 192;
inline constexpr std::size_t kGatherMmMaxTileRows = 256;  ///< the same for tiles (AMX)

/// Up to this number of rows the matrix is read once, in place, and nothing is packed. (Kernels for
/// bfloat16 and AMX expect packed rows in any case.)
inline constexpr std::size_t kGatherMmFewRows = 4;

/// A multiple of the panel width of every target and type.
inline constexpr std::size_t kGatherMmColumnStep = 192;

/// Size of the scratch memory of a call, aligned to 64.
inline constexpr std::size_t kGatherMmScratchBytes = 576 * 1024;

/// `scratch` is kGatherMmScratchBytes long.
using GatherMmKernel = void (*)(const GatherMmTile&, void* scratch);

/// output[r][c] = sum over k of left[r][k] * right[k][c], in float (double for float64). Products
/// are summed in blocks of k, then the blocks are summed. The sums of a row are the same, bit by
/// bit, for any number of rows and columns of a packed matrix, except in tile registers; unless the
/// matrix is packed, up to kGatherMmFewRows rows use other blocks.
GatherMmKernel FindGatherMm(Target target, DType dtype, GatherMmLayout layout);

/// Packs rows: those of a group are interleaved, so that elements that are multiplied together are
/// adjacent. `dtype` is that of the product. `packed` has PackedRows(rows) * RowBytes(depth) bytes
/// and is aligned to 64.
using GatherMmPackLeftKernel = void (*)(const void* const* left, std::size_t rows,
                                        std::size_t depth, void* packed);
GatherMmPackLeftKernel FindGatherMmPackLeft(Target target, DType dtype);

/// Packs a matrix for this target: consecutive panels of columns, in the order in which they are
/// read. `packed` has GatherMmPackedBytes(...) bytes and is aligned to 64.
using GatherMmPackRightKernel = void (*)(const void* right, std::size_t depth, std::size_t columns,
                                         void* packed);
GatherMmPackRightKernel FindGatherMmPackRight(Target target, DType dtype, bool transposed);

/// Number of columns of a packed matrix, padding included.
constexpr std::size_t GatherMmPackedColumns(std::size_t columns) {
  return (columns + 15) / 16 * 16;
}

/// Bytes of a packed matrix of the kernel's type.
std::size_t GatherMmPackedBytes(Target target, DType dtype, std::size_t depth, std::size_t columns);

}  // namespace coreai
