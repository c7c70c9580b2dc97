#include "ops/few_bits/few_bits_product.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/item_pool.h"
#include "ops/row_split.h"

namespace coreai {
namespace {

// Rows that a strip is multiplied by while they are in the second-level cache.
constexpr std::size_t kRoundedRows = 256;

std::size_t CountOf(std::size_t count, std::size_t step) { return (count + step - 1) / step; }

}  // namespace

FewBitsProduct::FewBitsProduct(DType dtype, Target target)
    : dtype_(dtype),
      few_(FindFewBits(target)),
      dequantize_(FindFewBitsDequantize(target)),
      rounded_(FindRounded(target)),
      round_(FindRound(target)),
      finish_(FindFinish(target)),
      multiply_(
          FindGatherMm(target, WideDType(dtype),
                       dtype == DType::kFloat64 ? GatherMmLayout::kRows : GatherMmLayout::kPacked)),
      pack_left_(FindGatherMmPackLeft(target, WideDType(dtype))) {}

void FewBitsProduct::Multiply(const KernelContext& context, const FewBitsWeight& weight,
                              const FewBitsCall& call) const {
  const std::size_t depth = weight.groups * weight.group;
  if (call.rows <= kFewBitsFewRows || depth == 0) return MultiplyFew(context, weight, call);
  MultiplyMany<float>(context, depth, call, [&](std::size_t column, float* matrix) {
    dequantize_(weight, column, std::min(kFewBitsPanels, call.columns - column), matrix);
  });
}

void FewBitsProduct::MultiplyFew(const KernelContext& context, const FewBitsWeight& weight,
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
  RunItems(context, CountOf(call.columns, kFewBitsStrip),
           kFewBitsFewRows * kFewBitsStrip * sizeof(float), [&](std::size_t item, void* scratch) {
             auto* const sums = static_cast<float*>(scratch);
             const std::size_t column = item * kFewBitsStrip;
             const std::size_t count = std::min(kFewBitsStrip, call.columns - column);
             for (std::size_t row = 0; row < call.rows; row += kFewBitsFewRows) {
               const std::size_t rows = std::min(kFewBitsFewRows, call.rows - row);
               few_(weight, {left + row * depth, sums, rows, column});
               for (std::size_t r = 0; r < rows; ++r) {
                 Finish(call, row + r, column, count, sums + r * kFewBitsStrip);
               }
             }
           });
}

void FewBitsProduct::MultiplyRounded(const KernelContext& context, const FewBitsWeight& weight,
                                     const FewBitsCall& call) const {
  const std::size_t groups = weight.groups, depth = groups * weight.padded;
  const ScratchMemory integers = AllocateScratch(call.rows * depth);
  auto* const left = reinterpret_cast<std::int8_t*>(integers.get());
  std::vector<float> factors(2 * call.rows * groups);
  float* const steps = factors.data();
  float* const added = steps + call.rows * groups;
  SplitRows(context, call.rows, depth, call.rows, [&](std::size_t first, std::size_t count) {
    for (std::size_t row = first; row < first + count; ++row) {
      round_(static_cast<const float*>(call.left) + row * groups * weight.group, groups,
             weight.group, weight.padded, left + row * depth, steps + row * groups,
             added + row * groups);
    }
  });
  const std::size_t most = std::min(kRoundedRows, call.rows);
  RunItems(context, CountOf(call.columns, kFewBitsStrip), most * kFewBitsStrip * sizeof(float),
           [&](std::size_t item, void* scratch) {
             auto* const sums = static_cast<float*>(scratch);
             const std::size_t column = item * kFewBitsStrip;
             const std::size_t count = std::min(kFewBitsStrip, call.columns - column);
             for (std::size_t row = 0; row < call.rows; row += most) {
               const std::size_t rows = std::min(most, call.rows - row);
               rounded_(weight, {left + row * depth, steps + row * groups, added + row * groups,
                                 sums, rows, column});
               for (std::size_t r = 0; r < rows; ++r) {
                 Finish(call, row + r, column, count, sums + r * kFewBitsStrip);
               }
             }
           });
}

void FewBitsProduct::MultiplyDouble(const KernelContext& context, const FewBitsInputs& inputs,
                                    const FewBitsCall& call) const {
  const std::size_t depth = inputs.depth();
  MultiplyMany<double>(context, depth, call, [&](std::size_t column, double* matrix) {
    const std::size_t last = std::min(call.columns, column + kFewBitsPanels);
    for (std::size_t k = 0; k < depth; ++k, matrix += kFewBitsPanels) {
      for (std::size_t c = column; c < last; ++c) matrix[c - column] = inputs.Value(c, k);
    }
  });
}

// Fills a few columns of the weight in the compute type, and multiplies all rows by them.
template <typename W, class Fill>
void FewBitsProduct::MultiplyMany(const KernelContext& context, std::size_t depth,
                                  const FewBitsCall& call, const Fill& fill) const {
  const std::size_t parts = CountOf(call.rows, kGatherMmMaxRows);
  const std::size_t part = CountOf(call.rows, parts);
  std::vector<const void*> rows(call.rows);
  for (std::size_t r = 0; r < call.rows; ++r) {
    rows[r] = static_cast<const W*>(call.left) + r * depth;
  }
  const bool packs = part > kGatherMmFewRows && depth != 0;
  const ScratchMemory packed = AllocateScratch(packs ? call.rows * depth * sizeof(W) : 1);
  auto* const packed_left = reinterpret_cast<W*>(packed.get());
  if (packs) {
    context.ParallelFor(parts, [&](std::size_t i) {
      const std::size_t count = std::min(part, call.rows - std::min(call.rows, i * part));
      if (count > 0)
        pack_left_(rows.data() + i * part, count, depth, packed_left + i * part * depth);
    });
  }
  constexpr std::size_t kWidth = kFewBitsPanels;
  const std::size_t sums_bytes = part * kWidth * sizeof(W);
  const std::size_t bytes = kGatherMmScratchBytes + sums_bytes + depth * kWidth * sizeof(W);
  RunItems(context, CountOf(call.columns, kWidth), bytes, [&](std::size_t item, void* scratch) {
    auto* const sums = reinterpret_cast<W*>(static_cast<char*>(scratch) + kGatherMmScratchBytes);
    W* const matrix = sums + part * kWidth;
    const std::size_t column = item * kWidth;
    const std::size_t count = std::min(kWidth, call.columns - column);
    fill(column, matrix);
    void* outputs[kGatherMmMaxRows];
    for (std::size_t r = 0; r < part; ++r) outputs[r] = sums + r * kWidth;
    if (depth == 0) std::memset(sums, 0, sums_bytes);
    for (std::size_t row = 0; row < call.rows; row += part) {
      const std::size_t height = std::min(part, call.rows - row);
      if (depth != 0) {
        multiply_({rows.data() + row, packed_left + row * depth, outputs, matrix, height, depth,
                   kWidth, 0, count},
                  scratch);
      }
      for (std::size_t r = 0; r < height; ++r) {
        Finish(call, row + r, column, count, sums + r * kWidth);
      }
    }
  });
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
