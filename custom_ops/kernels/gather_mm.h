#pragma once

#include <cstddef>

#include "kernels/dtype.h"
#include "simd/target.h"

namespace coreai {

/// How the matrix lies in memory.
enum class GatherMmLayout {
  kRows,        ///< [depth, columns]
  kTransposed,  ///< [columns, depth]
  kPacked,      ///< as GatherMmPackRight has written it
};
inline constexpr std::size_t kGatherMmLayoutCount = 3;

/// Rows anywhere in memory, multiplied with one matrix. Pointers need only the alignment of their
/// element, packed ones that of 64. Output overlaps nothing.
struct GatherMmTile {
  const void* const* left;  ///< [rows] rows of `depth` elements, of the type computed in
  const void*
      packed_left;      ///< the same as GatherMmPackLeft has written it, or null if they are few
  void* const* output;  ///< [rows] rows of `columns` elements, of the kernel's type
  const void* right;    ///< the matrix, of the kernel's type
  std::size_t rows;     ///< at most kGatherMmMaxRows
  std::size_t depth;    ///< at least 1
  std::size_t columns;  ///<
  std::size_t first_column;  ///< what to compute and store of each output row;
  std::size_t last_column;   ///< if packed, the first is a multiple of kGatherMmColumnStep
};

/// Rows of one call. More of them spread the cost of fetching the matrix over more products, up to
/// where they no longer fit the second cache.
inline constexpr std::size_t kGatherMmMaxRows = 192;

/// Up to so many rows the matrix is read once, where it lies, and nothing is packed.
inline constexpr std::size_t kGatherMmFewRows = 4;

/// Whole panels of any target and type.
inline constexpr std::size_t kGatherMmColumnStep = 192;

/// Memory that a call works in, aligned to 64.
inline constexpr std::size_t kGatherMmScratchBytes = 320 * 1024;

/// `scratch` is kGatherMmScratchBytes long.
using GatherMmKernel = void (*)(const GatherMmTile&, void* scratch);

/// output[r][c] = sum over k of left[r][k] * right[k][c], in float (double for float64). Products
/// are added up in blocks of k, and then the blocks; up to kGatherMmFewRows rows have other blocks.
GatherMmKernel FindGatherMm(Target target, DType dtype, GatherMmLayout layout);

/// Packs rows of the type computed in: groups of rows lie side by side, so that what is multiplied
/// at once is. `packed` has rows * depth elements and is aligned to 64.
using GatherMmPackLeftKernel = void (*)(const void* const* left, std::size_t rows,
                                        std::size_t depth, void* packed);
GatherMmPackLeftKernel FindGatherMmPackLeft(Target target, DType wide);

/// Packs a matrix, for this target: panels of columns lie one behind the other, in the order in
/// which they are read. `packed` has depth * GatherMmPackedColumns(columns) elements and is aligned
/// to 64.
using GatherMmPackRightKernel = void (*)(const void* right, std::size_t depth, std::size_t columns,
                                         void* packed);
GatherMmPackRightKernel FindGatherMmPackRight(Target target, DType dtype, bool transposed);

/// Columns that packed ones take the place of.
constexpr std::size_t GatherMmPackedColumns(std::size_t columns) {
  return (columns + 15) / 16 * 16;
}

}  // namespace coreai
