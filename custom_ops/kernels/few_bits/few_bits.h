#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"
#include "simd/target.h"

namespace coreai {

/// Columns (rows of the weight) whose codes are interleaved, and which a call computes together.
inline constexpr std::size_t kFewBitsStrip = 64;
/// Up to this number of rows, a weight is dequantized in registers.
inline constexpr std::size_t kFewBitsSmallBatch = 4;

/// Elements of a row in a tile of pairs of bfloat16.
inline constexpr std::size_t kFewBitsPairDepth = 32;

/// Codes of a unit of packed memory: the fewest that fill whole 32-bit words.
constexpr std::size_t UnitCodes(std::size_t bits) { return 32 / (bits & (~bits + 1)); }

/// A weight packed by PackCodes: strips of 64 columns, in each strip the groups, in each group
/// units, in each unit a 32-bit word per column or several, so that a product of one row reads
/// memory in order. A word has codes of consecutive k: with 8 bits one per byte, with 4 bits those
/// of k + j in the low and of k + 4 + j in the high half of byte j, with 2 bits likewise in
/// quarters. With 5 or 6 bits, the words of a unit have the low four bits of its codes, as with 4
/// bits, and a last word the bits above: byte j those of k + j, k + 4 + j, ..., from its lowest bit
/// on. Groups are padded to whole units, columns to whole strips. Scales, zero points and minimums
/// are [strip, group, 64]; scales and minimums of two levels are [strip, block, 64], and the bytes
/// by which they are multiplied [strip, group, 64].
struct FewBitsWeight {
  const std::uint8_t* codes;  ///< aligned to 64
  const void* scales;         ///< of type `scale`
  const float* zeros;         ///< null: all are `zero`
  const float* palette;       ///< [256] values of the codes; null: codes are their own values
  DType scale;                ///< float32, float16 or bfloat16
  float zero;                 ///<
  std::size_t bits;           ///< in memory: 8, 6, 5, 4 or 2
  std::size_t groups;         ///<
  std::size_t group;          ///< size of a group
  std::size_t padded;         ///< size of a group in memory
  float least, most;          ///< codes less zero points are integers between these; infinite if
                              ///< they are not integers
  bool is_bfloat16;           ///< the values of codes are finite numbers of bfloat16
  const void* minimums;       ///< of type `minimum`, subtracted from codes times scales; null:
                              ///< none. Products leave them out: see FewBitsMinimumsKernel
  DType minimum;              ///< float32, float16 or bfloat16
  const std::int8_t* scale_factors;    ///< null: scales and minimums have one level
  const std::int8_t* minimum_factors;  ///< null without minimums of two levels
  std::size_t block_shift;             ///< a block has 1 << block_shift groups

  std::size_t strip_bytes() const { return groups * padded * kFewBitsStrip * bits / 8; }
  /// Whether codes less zero points are integers from `low` to `high`.
  bool IsWithin(float low, float high) const { return low <= least && most <= high; }
  /// Tiles of pairs of bfloat16 that a group fills, the last one with zeros at the end.
  std::size_t pair_tiles() const { return (group + kFewBitsPairDepth - 1) / kFewBitsPairDepth; }
  /// Groups in a tile of pairs of a row: two, if each fills half of it.
  std::size_t tile_groups() const {
    return padded == group && 2 * group == kFewBitsPairDepth && groups % 2 == 0 ? 2 : 1;
  }
  /// Tiles of pairs of a row.
  std::size_t row_tiles() const { return groups / tile_groups() * pair_tiles(); }
};

/// Rows in float, multiplied by the columns of a strip: output[r][c] = sum over k of
/// left[r][k] * weight[c][k] for kFewBitsStrip columns, padding included.
struct FewBitsSmallBatch {
  const float* left;   ///< [rows, groups * padded], with zeros as padding
  float* output;       ///< [rows, kFewBitsStrip], aligned to 64
  std::size_t rows;    ///< at most kFewBitsSmallBatch
  std::size_t column;  ///< the first one, a multiple of kFewBitsStrip
};
using FewBitsSmallBatchKernel = void (*)(const FewBitsWeight&, const FewBitsSmallBatch&);
FewBitsSmallBatchKernel FindFewBitsSmallBatch(Target target);
/// The same for any number of rows, each of which has the same bits on every target: the codes of a
/// group are summed in order, then the groups.
FewBitsSmallBatchKernel FindFewBitsInOrder(Target target);

/// Products without minimums, from which those of the minimums are subtracted: output[r][c] -= sum
/// over g of sums[r][g] * minimums[column + c][g].
struct FewBitsMinimums {
  const float* sums;  ///< [rows, groups]: those of the elements of each group of a row
  float* output;      ///< [rows, stride]; what is after `count`, up to a vector, is written as well
  std::size_t stride;  ///<
  std::size_t rows;    ///<
  std::size_t column;  ///< a multiple of 16
  std::size_t count;   ///<
};
using FewBitsMinimumsKernel = void (*)(const FewBitsWeight&, const FewBitsMinimums&);
FewBitsMinimumsKernel FindFewBitsMinimums(Target target);

/// Columns that a call with many rows computes together: whole panels of the widest target.
inline constexpr std::size_t kFewBitsPanel = 48;

/// Rows in float, multiplied by columns [column, column + count) of the weight: output[r][c] = sum
/// over k of left[r][k] * weight[column + c][k].
struct FewBitsLargeBatch {
  const float* packed_left;  ///< [rows, groups * group], written by GatherMmPackLeft
  float* output;             ///< [rows, stride], of which [rows, count] are written
  std::size_t stride;        ///<
  std::size_t rows;          ///< more than kFewBitsSmallBatch, at most kGatherMmMaxRows
  std::size_t column;        ///< a multiple of kFewBitsPanel
  std::size_t count;         ///< at least 1, at most kFewBitsPanel
};

/// Size of the scratch memory of a call, aligned to 64.
inline constexpr std::size_t kFewBitsScratchBytes = 64 * 1024;
using FewBitsLargeBatchKernel = void (*)(const FewBitsWeight&, const FewBitsLargeBatch&,
                                         void* scratch);
FewBitsLargeBatchKernel FindFewBitsLargeBatch(Target target);

/// Rows of integers, multiplied by the columns of a strip: the sum over groups of
/// step[r][g] * scale[c][g] * (sum over k of left[r][k] * code[c][k] - zero[c][g] * sum[r][g]).
/// Sums in parentheses are exact below 2^24. The weight has no palette.
struct RoundedRows {
  const std::int8_t* left;  ///< [rows, groups * padded], with zeros as padding, aligned to 4; all
                            ///< RoundedBytes are readable
  const float* steps;       ///< [groups, stride], of which [groups, rows] are read
  const float* sums;        ///< the same: sums of left
  std::size_t stride;       ///<
  float* output;            ///< [rows, kFewBitsStrip], aligned to 64
  std::size_t rows;         ///< any number
  std::size_t column;       ///< the first one, a multiple of kFewBitsStrip

  /// The rows from `row` on; `depth` is groups * padded.
  RoundedRows From(std::size_t row, std::size_t depth) const {
    return {left + row * depth,           steps + row, sums + row, stride,
            output + row * kFewBitsStrip, rows - row,  column};
  }
};

/// Size of the memory of rounded rows: products of tiles read up to 15 rows and 63 bytes after the
/// last row.
constexpr std::size_t RoundedBytes(std::size_t rows, std::size_t depth) {
  return (rows + 15) * depth + 63;
}

using RoundedKernel = void (*)(const FewBitsWeight&, const RoundedRows&);
RoundedKernel FindRounded(Target target);
/// The same; `vnni` selects the version for CPUs with VNNI of a target that does not require it.
RoundedKernel FindRounded(Target target, bool vnni);

/// Rows as sums of bfloat16, multiplied by the columns of a strip, and the products of each group
/// by steps, if there are any. The weight's is_bfloat16 is true.
struct FewBitsParts {
  const void* left;              ///< written by FewBitsSplitKernel, aligned to 64
  std::size_t parts;             ///< 1, 2 or 3
  float* output;                 ///< [rows rounded up to 16, kFewBitsStrip], aligned to 64
  std::size_t rows;              ///< at least 1
  std::size_t column;            ///< the first one, a multiple of kFewBitsStrip
  const float* steps = nullptr;  ///< [groups, stride] of one part, and 15 readable after them;
                                 ///< null: all are 1, and sums of large groups are cut
  std::size_t stride = 0;        ///<
};
using FewBitsPartsKernel = void (*)(const FewBitsWeight&, const FewBitsParts&);
/// Null if the target has no tiles.
FewBitsPartsKernel FindFewBitsParts(Target target);

/// Rows of a tile.
inline constexpr std::size_t kFewBitsTileRows = 16;
/// The first of some rounded rows, in tiles: fewer than 12 in the last tile take less time without
/// it (768 inputs, 2048 outputs, groups of 32, AMX, 2026-11).
constexpr std::size_t RowsInTiles(std::size_t rows) {
  const std::size_t last = rows % kFewBitsTileRows;
  return last < 12 ? rows - last : rows;
}
/// Size of `parts` parts of up to 16 rows.
inline std::size_t PartsBytes(const FewBitsWeight& weight, std::size_t parts) {
  return weight.row_tiles() * parts * kFewBitsTileRows * kFewBitsPairDepth * 2;
}

/// Splits `count` (1 to 16) rows of [groups * group] elements into parts whose sum they are: as
/// [row_tiles, parts] tiles, with zeros for rows and elements that there are not. Three
/// parts are exact for float32, two for float16, one for bfloat16, if no part is subnormal.
using FewBitsSplitKernel = void (*)(const FewBitsWeight& weight, const float* rows,
                                    std::size_t count, std::size_t parts, void* tiles);
/// Null if the target has no tiles.
FewBitsSplitKernel FindFewBitsSplit(Target target);

/// The least magnitude by which a group is rounded.
inline constexpr float kSmallestLargest = 1e-30f;

/// Rounds the groups of a row to integers times `steps`; a group that is not finite has the step
/// NaN. `left`, `steps` and `sums` are those of one row; steps and sums of groups are `stride`
/// elements apart.
using RoundKernel = void (*)(const float* row, std::size_t groups, std::size_t group,
                             std::size_t padded, std::int8_t* left, float* steps, float* sums,
                             std::size_t stride);
RoundKernel FindRound(Target target);

/// The same for `count` (1 to 16) rows, whose integers are written as one part (FewBitsParts), in
/// which they are exact. Groups have up to kFewBitsPairDepth elements; `sums` are written for
/// minimums only.
using RoundPairsKernel = void (*)(const FewBitsWeight& weight, const float* rows, std::size_t count,
                                  void* tiles, float* steps, float* sums, std::size_t stride);
/// Null if the target has no tiles.
RoundPairsKernel FindRoundPairs(Target target);

/// Adds a bias (float, or null) to `count` elements and stores them as `dtype`, which is not
/// float64.
using FinishKernel = void (*)(const float* row, const float* bias, std::size_t count, DType dtype,
                              void* output);
FinishKernel FindFinish(Target target);

}  // namespace coreai
