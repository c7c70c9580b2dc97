#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"
#include "simd/target.h"

namespace coreai {

/// Columns (rows of the weight) whose codes are interleaved.
inline constexpr std::size_t kFewBitsTile = 16;
/// Columns that a call computes together.
inline constexpr std::size_t kFewBitsStrip = 64;
/// Up to this number of rows, a weight is dequantized in registers.
inline constexpr std::size_t kFewBitsFewRows = 4;

/// A weight packed by PackFewBits: tiles of 16 columns, in each tile the groups, in each group
/// units of 64 bytes. A 32-bit word of a unit belongs to one column and has codes of consecutive k:
/// with 8 bits one per byte, with 4 bits those of k + j in the low and of k + 4 + j in the high
/// half of byte j, with 2 bits likewise in quarters. 3-bit codes take 4 bits. Groups are padded to
/// whole units, tiles to whole strips. Scales and zero points are [tile, group, 16].
struct FewBitsWeight {
  const std::uint8_t* codes;  ///< aligned to 64
  const void* scales;         ///< of type `scale`
  const float* zeros;         ///< null: all are `zero`
  const float* palette;       ///< [256] values of the codes; null: codes are their own values
  DType scale;                ///< float32, float16 or bfloat16
  float zero;                 ///<
  std::size_t bits;           ///< in memory: 8, 4 or 2
  std::size_t groups;         ///<
  std::size_t group;          ///< size of a group
  std::size_t padded;         ///< size of a group in memory

  /// Codes of a unit of 64 bytes per column.
  std::size_t unit() const { return 32 / bits; }
  std::size_t tile_bytes() const { return groups * padded * kFewBitsTile * bits / 8; }
};

/// Rows in float, multiplied by the columns of a strip: output[r][c] = sum over k of
/// left[r][k] * weight[c][k] for kFewBitsStrip columns, padding included.
struct FewBitsRows {
  const float* left;   ///< [rows, groups * padded], with zeros as padding
  float* output;       ///< [rows, kFewBitsStrip], aligned to 64
  std::size_t rows;    ///< at most kFewBitsFewRows
  std::size_t column;  ///< the first one, a multiple of kFewBitsStrip
};
using FewBitsKernel = void (*)(const FewBitsWeight&, const FewBitsRows&);
FewBitsKernel FindFewBits(Target target);

/// Columns that are dequantized together: whole panels of a matrix packed for gather_mm.
inline constexpr std::size_t kFewBitsPanels = 48;

/// Writes columns [column, column + count) of the weight as a matrix [groups * group, count] in the
/// layout of GatherMmPackRight, aligned to 64. `column` is a multiple of kFewBitsPanels, `count` at
/// most kFewBitsPanels.
using FewBitsDequantizeKernel = void (*)(const FewBitsWeight&, std::size_t column,
                                         std::size_t count, float* matrix);
FewBitsDequantizeKernel FindFewBitsDequantize(Target target);

/// Rows of integers, multiplied by the columns of a strip: the sum over groups of
/// step[r][g] * scale[c][g] * (sum over k of left[r][k] * code[c][k] - zero[c][g] * sum[r][g]).
/// Sums in parentheses are exact below 2^24. The weight has no palette.
struct RoundedRows {
  const std::int8_t* left;  ///< [rows, groups * padded], with zeros as padding, aligned to 4
  const float* steps;       ///< [rows, groups]
  const float* sums;        ///< [rows, groups]: sums of left
  float* output;            ///< [rows, kFewBitsStrip], aligned to 64
  std::size_t rows;         ///< any number
  std::size_t column;       ///< the first one, a multiple of kFewBitsStrip
};
using RoundedKernel = void (*)(const FewBitsWeight&, const RoundedRows&);
RoundedKernel FindRounded(Target target);

/// The least magnitude by which a group is rounded.
inline constexpr float kSmallestLargest = 1e-30f;

/// Rounds the groups of a row to integers times `steps`; a group that is not finite has the step
/// NaN. `left`, `steps` and `sums` are those of one row.
using RoundKernel = void (*)(const float* row, std::size_t groups, std::size_t group,
                             std::size_t padded, std::int8_t* left, float* steps, float* sums);
RoundKernel FindRound(Target target);

/// Adds a bias (float, or null) to `count` elements and stores them as `dtype`, which is not
/// float64.
using FinishKernel = void (*)(const float* row, const float* bias, std::size_t count, DType dtype,
                              void* output);
FinishKernel FindFinish(Target target);

}  // namespace coreai
