#include "ops/few_bits/few_bits_product.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/row_split.h"

namespace coreai {
namespace {

// Rows that all strips are multiplied by, one after the other, while the rows are in the
// second-level cache. 512 rows at once took a quarter longer (2048 inputs, 1024 outputs, AMX, 2 MiB
// of cache, 2026-11; docs/internals/performance_log.md).
constexpr std::size_t kRowsOfStrip = 256;
// The same for rows in parts, of which fewer fit, but not so few that expanding codes takes longer.
constexpr std::size_t kRowBlockBytes = 1 << 20;
constexpr std::size_t kLeastRowsOfBlock = 64;
// Rows of the output that are prefetched before they are written: they are strips of lines that no
// prefetcher of the processor foresees. Products of 512 rows took 0.89 of the time (640 inputs,
// 2048 outputs, 2026-11).
constexpr std::size_t kRowsAhead = 12;
// From this number of rows on, tiles of bfloat16 take less time: half of a tile is empty then, but
// fewer rows took as long without tiles (same run). Rounded rows, which VNNI multiplies otherwise,
// need twice as many (kernels/few_bits/tiled-inl.h).
constexpr std::size_t kLeastTiledRows = 8;
// From these numbers of rows on, tiles of bfloat16 take less time than those of bytes for rounded
// rows in groups of up to 32, which fill half of a tile of bytes: 0.75 to 0.8 for 128 rows, 0.84 to
// 0.94 for 16. Codes of 8 bits take longer to expand (640 inputs, 2048 outputs, AMX, 2026-11).
constexpr std::size_t kLeastPairedRows = 16;
constexpr std::size_t kLeastPairedRowsOfBytes = 64;

std::size_t CountOf(std::size_t count, std::size_t step) { return (count + step - 1) / step; }
std::size_t RoundUp(std::size_t count, std::size_t step) { return CountOf(count, step) * step; }

/// Splits rows of `bytes` into as few blocks of nearly equal size as possible; returns the size, a
/// multiple of a tile's.
std::size_t RowsOfBlock(std::size_t rows, std::size_t bytes) {
  const std::size_t fit = kRowBlockBytes / bytes / kFewBitsTileRows * kFewBitsTileRows;
  const std::size_t most = std::clamp(fit, kLeastRowsOfBlock, kRowsOfStrip);
  return RoundUp(CountOf(rows, CountOf(rows, most)), kFewBitsTileRows);
}

/// The sums of the groups of all rows, [rows, groups]; nothing if the weight has no minimums.
std::vector<float> GroupSums(const KernelContext& context, const FewBitsWeight& weight,
                             const FewBitsCall& call) {
  constexpr std::size_t kSums = 8;  // as many as a vector adds at once
  if (weight.minimums == nullptr) return {};
  std::vector<float> all(call.rows * weight.groups);
  SplitRows(context, all.size(), weight.group, all.size(), [&](std::size_t first, std::size_t n) {
    for (std::size_t i = first; i < first + n; ++i) {
      const float* const x = static_cast<const float*>(call.left) + i * weight.group;
      float sums[kSums] = {};
      std::size_t k = 0;
      for (; k + kSums <= weight.group; k += kSums) {
        for (std::size_t j = 0; j < kSums; ++j) sums[j] += x[k + j];
      }
      for (; k < weight.group; ++k) sums[0] += x[k];
      for (const float sum : sums) all[i] += sum;
    }
  });
  return all;
}

/// Sums of products in order, one row after the other: [rows, depth] by the first `count`
/// columns of [depth, kFewBitsPanel].
void AddProducts(const double* left, std::size_t rows, std::size_t depth, const double* matrix,
                 std::size_t count, double* sums) {
  std::fill_n(sums, rows * kFewBitsPanel, 0.0);
  for (; rows > 0; --rows, left += depth, sums += kFewBitsPanel) {
    for (std::size_t k = 0; k < depth; ++k) {
      const double* const right = matrix + k * kFewBitsPanel;
      for (std::size_t c = 0; c < count; ++c) sums[c] += left[k] * right[c];
    }
  }
}

}  // namespace

/// Splits rows into as few parts as possible, of at most kGatherMmMaxRows and of nearly equal size.
struct FewBitsProduct::RowParts {
  std::size_t rows;
  std::size_t count;

  explicit RowParts(std::size_t all) : rows(all), count(CountOf(all, kGatherMmMaxRows)) {}
  /// The first row of a part.
  std::size_t First(std::size_t part) const { return part * rows / count; }
};

FewBitsProduct::FewBitsProduct(DType dtype, Target target, bool deterministic)
    : dtype_(dtype),
      deterministic_(deterministic),
      small_batch_(deterministic ? FindFewBitsInOrder(target) : FindFewBitsSmallBatch(target)),
      large_batch_(FindFewBitsLargeBatch(target)),
      minimums_(FindFewBitsMinimums(target)),
      rounded_(FindRounded(target)),
      round_(FindRound(target)),
      round_pairs_(FindRoundPairs(target)),
      multiply_parts_(FindFewBitsParts(target)),
      split_(FindFewBitsSplit(target)),
      finish_(FindFinish(target)),
      multiply_(FindGatherMm(target, WideDType(dtype), GatherMmLayout::kRows)),
      pack_left_(FindGatherMmPackLeft(target, WideDType(dtype))) {}

void FewBitsProduct::Multiply(const KernelContext& context, const FewBitsWeight& weight,
                              std::size_t parts, const FewBitsCall& call) const {
  const std::size_t depth = weight.groups * weight.group;
  if (deterministic_ || call.rows <= kFewBitsSmallBatch || depth == 0)
    return MultiplySmallBatch(context, weight, call);
  if (UsesTiles(weight, call.rows)) return MultiplyParts(context, weight, parts, call);
  MultiplyLargeBatch(context, weight, call);
}

/// Whether tiles hold the values of codes exactly, take less time, and are half full or more.
bool FewBitsProduct::UsesTiles(const FewBitsWeight& weight, std::size_t rows) const {
  return multiply_parts_ != nullptr && weight.is_bfloat16 && rows >= kLeastTiledRows &&
         weight.pair_tiles() * kFewBitsPairDepth <= 2 * weight.group;
}

/// The first rounded rows, which are multiplied as tiles of bfloat16 instead of bytes.
std::size_t FewBitsProduct::PairedRows(const FewBitsWeight& weight, std::size_t rows) const {
  const std::size_t least = weight.bits < 8 ? kLeastPairedRows : kLeastPairedRowsOfBytes;
  const bool fits = weight.pair_tiles() == 1 &&
                    2 * weight.group * weight.tile_groups() > kFewBitsPairDepth &&
                    weight.IsWithin(-128, 127);
  return round_pairs_ != nullptr && fits && rows >= least ? RowsInTiles(rows) : 0;
}

/// Calls `body(row, rows, column, sums)`, which multiplies rows [row, row + rows), up to `most` of
/// them, by the strip at `column`, subtracts the products of minimums and finishes the sums. The
/// same rows are multiplied by all strips one after the other, so that they stay in the
/// second-level cache.
template <class Body>
void FewBitsProduct::RunStrips(const KernelContext& context, const FewBitsWeight& weight,
                               const FewBitsCall& call, const float* group_sums, std::size_t most,
                               const Body& body) const {
  const std::size_t strips = CountOf(call.columns, kFewBitsStrip);
  const std::size_t bytes = RoundUp(most, kFewBitsTileRows) * kFewBitsStrip * sizeof(float);
  RunItems(context, CountOf(call.rows, most) * strips, bytes, [&](std::size_t item, void* scratch) {
    auto* const sums = static_cast<float*>(scratch);
    const std::size_t row = item / strips * most;
    const std::size_t column = item % strips * kFewBitsStrip;
    const std::size_t rows = std::min(most, call.rows - row);
    const std::size_t count = std::min(kFewBitsStrip, call.columns - column);
    body(row, rows, column, sums);
    if (weight.minimums != nullptr) {
      minimums_(weight,
                {group_sums + row * weight.groups, sums, kFewBitsStrip, rows, column, count});
    }
    const std::size_t size = SizeOf(dtype_);
    for (std::size_t r = 0; r < rows; ++r) {
      if (r + kRowsAhead < rows) {
        const char* const ahead =
            call.output + ((row + r + kRowsAhead) * call.columns + column) * size;
        for (std::size_t i = 0; i < count * size; i += 64) __builtin_prefetch(ahead + i, 1);
      }
      Finish(call, row + r, column, count, sums + r * kFewBitsStrip);
    }
  });
}

void FewBitsProduct::MultiplySmallBatch(const KernelContext& context, const FewBitsWeight& weight,
                                        const FewBitsCall& call) const {
  const std::size_t depth = weight.groups * weight.padded;
  const auto* left = static_cast<const float*>(call.left);
  std::vector<float> padded;
  if (weight.padded != weight.group) {
    padded.assign(call.rows * depth, 0.0f);
    for (std::size_t i = 0; i < call.rows * weight.groups; ++i) {
      std::copy_n(left + i * weight.group, weight.group, padded.data() + i * weight.padded);
    }
    left = padded.data();
  }
  const std::vector<float> group_sums = GroupSums(context, weight, call);
  RunStrips(context, weight, call, group_sums.data(),
            deterministic_ ? std::min(kRowsOfStrip, call.rows) : kFewBitsSmallBatch,
            [&](std::size_t row, std::size_t rows, std::size_t column, float* sums) {
              small_batch_(weight, {left + row * depth, sums, rows, column});
            });
}

void FewBitsProduct::MultiplyRounded(const KernelContext& context, const FewBitsWeight& weight,
                                     const FewBitsCall& call) const {
  const std::size_t groups = weight.groups, depth = groups * weight.padded;
  if (depth == 0) return MultiplySmallBatch(context, weight, call);
  const std::size_t paired = PairedRows(weight, call.rows), rest = call.rows - paired;
  const std::size_t tile_bytes = PartsBytes(weight, 1);
  const ScratchMemory pairs = AllocateScratch(CountOf(paired, kFewBitsTileRows) * tile_bytes);
  const ScratchMemory integers = AllocateScratch(RoundedBytes(rest, depth));
  auto* const left = reinterpret_cast<std::int8_t*>(integers.get());
  std::vector<float> factors(2 * call.rows * groups);
  float* const steps = factors.data();
  float* const added = steps + call.rows * groups;
  std::vector<float> group_sums(weight.minimums == nullptr ? 0 : call.rows * groups);
  const auto row_of = [&](std::size_t row) {
    return static_cast<const float*>(call.left) + row * groups * weight.group;
  };
  const auto sum_groups = [&](std::size_t first, std::size_t count) {
    if (group_sums.empty()) return;
    for (std::size_t row = first; row < first + count; ++row) {
      for (std::size_t g = 0; g < groups; ++g) {
        const std::size_t at = g * call.rows + row;
        group_sums[row * groups + g] = steps[at] * added[at];
      }
    }
  };
  context.ParallelFor(CountOf(paired, kFewBitsTileRows), [&](std::size_t tile) {
    const std::size_t row = tile * kFewBitsTileRows;
    const std::size_t count = std::min(kFewBitsTileRows, paired - row);
    round_pairs_(weight, row_of(row), count, pairs.get() + tile * tile_bytes, steps + row,
                 added + row, call.rows);
    sum_groups(row, count);
  });
  SplitRows(context, rest, depth, rest, [&](std::size_t first, std::size_t count) {
    for (std::size_t i = first; i < first + count; ++i) {
      const std::size_t row = paired + i;
      round_(row_of(row), groups, weight.group, weight.padded, left + i * depth, steps + row,
             added + row, call.rows);
    }
    sum_groups(paired + first, count);
  });
  RunStrips(context, weight, call, group_sums.data(), std::min(kRowsOfStrip, call.rows),
            [&](std::size_t row, std::size_t rows, std::size_t column, float* sums) {
              const std::size_t tiled = row < paired ? std::min(rows, paired - row) : 0;
              if (tiled > 0) {
                const char* const first = pairs.get() + row / kFewBitsTileRows * tile_bytes;
                multiply_parts_(weight, {first, 1, sums, tiled, column, steps + row, call.rows});
              }
              if (tiled == rows) return;
              row += tiled;
              rounded_(weight, {left + (row - paired) * depth, steps + row, added + row, call.rows,
                                sums + tiled * kFewBitsStrip, rows - tiled, column});
            });
}

void FewBitsProduct::MultiplyParts(const KernelContext& context, const FewBitsWeight& weight,
                                   std::size_t parts, const FewBitsCall& call) const {
  const std::size_t depth = weight.groups * weight.group;
  const std::size_t bytes = PartsBytes(weight, parts);
  const std::size_t tiles = CountOf(call.rows, kFewBitsTileRows);
  const ScratchMemory left = AllocateScratch(tiles * bytes);
  context.ParallelFor(tiles, [&](std::size_t tile) {
    const std::size_t row = tile * kFewBitsTileRows;
    split_(weight, static_cast<const float*>(call.left) + row * depth,
           std::min(kFewBitsTileRows, call.rows - row), parts, left.get() + tile * bytes);
  });
  const std::vector<float> group_sums = GroupSums(context, weight, call);
  RunStrips(context, weight, call, group_sums.data(),
            RowsOfBlock(call.rows, bytes / kFewBitsTileRows),
            [&](std::size_t row, std::size_t rows, std::size_t column, float* sums) {
              const char* const first = left.get() + row / kFewBitsTileRows * bytes;
              multiply_parts_(weight, {first, parts, sums, rows, column});
            });
}

void FewBitsProduct::MultiplyLargeBatch(const KernelContext& context, const FewBitsWeight& weight,
                                        const FewBitsCall& call) const {
  const std::size_t depth = weight.groups * weight.group;
  const RowParts parts(call.rows);
  const ScratchMemory packed = PackLeft<float>(context, parts, depth, call);
  const auto* const left = reinterpret_cast<const float*>(packed.get());
  // Sums that are the result already are stored where it belongs.
  const std::vector<float> group_sums = GroupSums(context, weight, call);
  const bool in_place =
      dtype_ == DType::kFloat32 && call.bias == nullptr && weight.minimums == nullptr;
  const std::size_t bytes = kFewBitsScratchBytes + kGatherMmMaxRows * kFewBitsPanel * sizeof(float);
  RunItems(
      context, CountOf(call.columns, kFewBitsPanel), bytes, [&](std::size_t item, void* memory) {
        auto* const sums =
            reinterpret_cast<float*>(static_cast<char*>(memory) + kFewBitsScratchBytes);
        const std::size_t column = item * kFewBitsPanel;
        const std::size_t count = std::min(kFewBitsPanel, call.columns - column);
        for (std::size_t part = 0; part < parts.count; ++part) {
          const std::size_t row = parts.First(part), rows = parts.First(part + 1) - row;
          auto* const results = reinterpret_cast<float*>(call.output) + row * call.columns + column;
          large_batch_(weight,
                       {left + row * depth, in_place ? results : sums,
                        in_place ? call.columns : kFewBitsPanel, rows, column, count},
                       memory);
          if (weight.minimums != nullptr) {
            minimums_(weight, {group_sums.data() + row * weight.groups, sums, kFewBitsPanel, rows,
                               column, count});
          }
          for (std::size_t r = 0; !in_place && r < rows; ++r) {
            Finish(call, row + r, column, count, sums + r * kFewBitsPanel);
          }
        }
      });
}

void FewBitsProduct::MultiplyDouble(const KernelContext& context, const FewBitsInputs& inputs,
                                    const FewBitsCall& call) const {
  const std::size_t depth = inputs.depth();
  const RowParts parts(call.rows);
  const ScratchMemory packed = PackLeft<double>(context, parts, depth, call);
  const auto* const left = reinterpret_cast<const double*>(packed.get());
  const std::size_t sums_bytes = kGatherMmMaxRows * kFewBitsPanel * sizeof(double);
  const std::size_t bytes =
      kGatherMmScratchBytes + sums_bytes + depth * kFewBitsPanel * sizeof(double);
  RunItems(
      context, CountOf(call.columns, kFewBitsPanel), bytes, [&](std::size_t item, void* memory) {
        auto* const sums =
            reinterpret_cast<double*>(static_cast<char*>(memory) + kGatherMmScratchBytes);
        double* const matrix = sums + kGatherMmMaxRows * kFewBitsPanel;
        const std::size_t column = item * kFewBitsPanel;
        const std::size_t count = std::min(kFewBitsPanel, call.columns - column);
        for (std::size_t k = 0; k < depth; ++k) {
          for (std::size_t c = 0; c < count; ++c) {
            matrix[k * kFewBitsPanel + c] = inputs.Value(column + c, k);
          }
        }
        if (depth == 0) std::memset(sums, 0, sums_bytes);
        for (std::size_t part = 0; part < parts.count; ++part) {
          const std::size_t row = parts.First(part), rows = parts.First(part + 1) - row;
          const void* lefts[kGatherMmMaxRows];
          void* outputs[kGatherMmMaxRows];
          for (std::size_t r = 0; r < rows; ++r) {
            lefts[r] = static_cast<const double*>(call.left) + (row + r) * depth;
            outputs[r] = sums + r * kFewBitsPanel;
          }
          if (deterministic_) {
            AddProducts(static_cast<const double*>(call.left) + row * depth, rows, depth, matrix,
                        count, sums);
          } else if (depth != 0) {
            multiply_(
                {lefts, left + row * depth, outputs, matrix, rows, depth, kFewBitsPanel, 0, count},
                memory);
          }
          for (std::size_t r = 0; r < rows; ++r) {
            Finish(call, row + r, column, count, sums + r * kFewBitsPanel);
          }
        }
      });
}

/// Returns the rows of all parts in the order in which a product reads them; no memory if products
/// of so few rows read them where they are.
template <typename W>
ScratchMemory FewBitsProduct::PackLeft(const KernelContext& context, const RowParts& parts,
                                       std::size_t depth, const FewBitsCall& call) const {
  if (call.rows <= kGatherMmFewRows || depth == 0) return nullptr;
  ScratchMemory packed = AllocateScratch(call.rows * depth * sizeof(W));
  context.ParallelFor(parts.count, [&](std::size_t part) {
    const std::size_t row = parts.First(part), rows = parts.First(part + 1) - row;
    const void* lefts[kGatherMmMaxRows];
    for (std::size_t r = 0; r < rows; ++r) {
      lefts[r] = static_cast<const W*>(call.left) + (row + r) * depth;
    }
    pack_left_(lefts, rows, depth, reinterpret_cast<W*>(packed.get()) + row * depth);
  });
  return packed;
}

template <typename W>
void FewBitsProduct::Finish(const FewBitsCall& call, std::size_t row, std::size_t first,
                            std::size_t count, const W* sums) const {
  char* const output = call.output + (row * call.columns + first) * SizeOf(dtype_);
  const W* const bias = call.bias == nullptr ? nullptr : static_cast<const W*>(call.bias) + first;
  if constexpr (sizeof(W) == sizeof(float)) {
    finish_(sums, bias, count, dtype_, output);
  } else {
    auto* const out = reinterpret_cast<W*>(output);
    for (std::size_t c = 0; c < count; ++c) out[c] = bias == nullptr ? sums[c] : sums[c] + bias[c];
  }
}

}  // namespace coreai
