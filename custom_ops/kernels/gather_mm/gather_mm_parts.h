#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gather_mm/gather_mm.h"

// Products of float32 by tiles of bfloat16. A float32 is the sum of three bfloat16, each the
// nearest to what those before it leave. Of the nine products of the parts of two numbers, the six
// largest are added, in float32; the others are below 2^-24 of the product. Sums of 128
// products are added in float32, in each of them the small products first.

namespace coreai {

/// What is known of a row. Tile instructions flush very small parts to zero.
enum class PartsRow : std::uint8_t {
  kExact,  ///< no part and no product of parts is flushed
  kSmall,  ///< some may be, which is less than a rounding of a sum that is not small as well
  kOther,  ///< sums are meaningless: numbers are not finite or too large, or sums of kSmall small
};

/// The magnitudes of numbers other than zero, as the bits of floats without sign. Those of infinity
/// and NaN are larger than those of finite numbers.
struct PartsRange {
  std::uint32_t smallest = 0xFFFFFFFFu;  ///< as it is if all are zero
  std::uint32_t largest = 0;
};

/// Whether tiles may multiply a matrix of that range and depth: its numbers are at most 2^30.
bool PartsFit(const PartsRange& matrix, std::size_t depth);

/// The magnitudes of kExact rows for a matrix of that range. Smaller numbers make a row kSmall,
/// larger ones kOther.
PartsRange ExactRowsOf(const PartsRange& matrix);

/// The rows as parts, and how products are divided among calls.
GatherMmLeft PartsLeft();

/// Bytes of a packed matrix: 6 per number, and padding.
std::size_t PartsBytes(std::size_t depth, std::size_t columns);

/// Rows of float32, multiplied by one packed matrix. `states` are those of the rows.
struct PartsTile {
  GatherMmTile product;
  PartsRow* states;
};

/// Size of the scratch memory of a call, aligned to 64.
inline constexpr std::size_t kPartsScratchBytes = 640 * 1024;

/// The kernels; null without tiles.
struct GatherMmOfParts {
  /// As a GatherMmKernel. Rows of kSmall with small sums become kOther. The sums of a row are the
  /// same, bit by bit, for any number of rows and columns.
  void (*product)(const PartsTile&, void* scratch) = nullptr;
  /// As a GatherMmPackLeftKernel; also finds the states of the rows.
  void (*pack_left)(const void* const* left, std::size_t rows, std::size_t depth,
                    const PartsRange& exact, void* packed, PartsRow* states) = nullptr;
  /// Packs a matrix [depth, columns], or [columns, depth] if `transposed`. Returns its range.
  PartsRange (*pack_right)(const float* right, std::size_t depth, std::size_t columns,
                           bool transposed, void* packed) = nullptr;
};
GatherMmOfParts FindGatherMmOfParts(Target target);

}  // namespace coreai
