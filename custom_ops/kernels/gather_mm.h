#pragma once

#include <cstddef>

#include "kernels/dtype.h"
#include "simd/target.h"

namespace coreai {

/// Rows anywhere in memory, multiplied with one matrix. Pointers need only the alignment of their
/// element. Output overlaps nothing.
struct GatherMmTile {
  const void* const* left;  ///< [rows] rows of `depth` elements, of the type computed in
  const void* packed_left;  ///< the same as GatherMmPack has written it; for transposed matrices
  void* const* output;      ///< [rows] rows of `columns` elements, of the kernel's type
  const void* right;        ///< [depth, columns], transposed [columns, depth], of the kernel's type
  std::size_t rows;         ///< at most kGatherMmMaxRows
  std::size_t depth;        ///< at least 1
  std::size_t columns;      ///<
  std::size_t first_column;  ///< what to compute and store of each output row
  std::size_t last_column;   ///<
};

/// Rows of one call. More of them spread the cost of rearranging the matrix over more products, up
/// to where they no longer fit the second cache.
inline constexpr std::size_t kGatherMmMaxRows = 192;

/// Up to so many rows the matrix is read once, where it lies, and nothing is packed.
inline constexpr std::size_t kGatherMmFewRows = 4;

/// Memory that a call works in, aligned to 64.
inline constexpr std::size_t kGatherMmScratchBytes = 256 * 1024;

/// `scratch` is kGatherMmScratchBytes long.
using GatherMmKernel = void (*)(const GatherMmTile&, void* scratch);

/// output[r][c] = sum over k of left[r][k] * right[k][c], in float (double for float64). Products
/// are added up in blocks of k, and then the blocks; up to kGatherMmFewRows rows have other blocks.
GatherMmKernel FindGatherMm(Target target, DType dtype, bool transposed);

/// Packs rows of the type computed in for transposed matrices: groups of rows lie side by side, so
/// that a vector holds one element of each. `packed` has GatherMmPackedRows(rows) * depth elements
/// and is aligned to 64.
using GatherMmPackKernel = void (*)(const void* const* left, std::size_t rows, std::size_t depth,
                                    void* packed);

GatherMmPackKernel FindGatherMmPack(Target target, DType wide);

/// Rows that packed rows take the place of.
constexpr std::size_t GatherMmPackedRows(std::size_t rows) { return (rows + 15) / 16 * 16; }

}  // namespace coreai
