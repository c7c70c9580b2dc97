#include "kernels/gather_mm/gather_mm.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/gather_mm/gather_mm_parts.h"
#include "kernels/gather_mm/widen.h"
#include "ops/gather_mm/gather_operand.h"
#include "ops/gather_mm/packed_constant.h"
#include "ops/gather_mm/sorted_rows.h"
#include "ops/item_pool.h"
#include "ops/op_list.h"
#include "ops/row_split.h"

namespace coreai {
namespace {

namespace names = schema::gather_mm;
static_assert(names::kInputCount == 4 && names::kAttributeCount == 2, "the declaration changed");

// The number of multiply-adds that is worth a thread: 3 µs at 200 GFLOP/s, which a
// core with AVX-512 reaches.
constexpr std::size_t kProductsPerItem = 256 * 1024;
// The number of items of a call for which columns are split, if rows and matrices give too few.
constexpr std::size_t kWantedItems = 8;
// Blocks whose rows are packed as parts at once: 1024 rows, of 6 bytes for each number.
constexpr std::size_t kPackedBlocks = 4;

// Rows of the output that use the same matrix, and a range of its columns.
struct Block {
  std::size_t matrix;
  std::size_t first_row;  // in the rows sorted by matrix
  std::size_t rows;
  std::size_t first_column;
  std::size_t last_column;
  std::size_t packed_row;  // index of its first row in the packed rows
};

// The matrix of each flat index of the batch axes.
std::vector<std::size_t> MatricesOf(const GatherOperand& rhs, const Shape& batch) {
  auto matrices = PlacesIn({rhs.shape().begin(), rhs.shape().end() - 2}, batch);
  for (std::size_t& matrix : matrices) matrix = rhs.Matrix(matrix);
  return matrices;
}

// Splits rows into blocks of at most the size that the kernel supports.
std::vector<Block> CutBlocks(const std::vector<std::size_t>& starts, std::size_t columns,
                             const GatherMmLeft& left) {
  std::vector<Block> blocks;
  for (std::size_t matrix = 0; matrix + 1 < starts.size(); ++matrix) {
    const std::size_t rows = starts[matrix + 1] - starts[matrix];
    if (rows == 0) continue;
    const std::size_t parts = (rows - 1) / left.max_rows + 1;
    const std::size_t part = ((rows - 1) / parts / left.block_step + 1) * left.block_step;
    for (std::size_t row = 0; row < rows; row += part) {
      blocks.push_back({matrix, starts[matrix] + row, std::min(part, rows - row), 0, columns, 0});
    }
  }
  return blocks;
}

// Splits the columns of blocks if there are too few blocks.
std::vector<Block> CutColumns(const std::vector<Block>& blocks, std::size_t columns,
                              std::size_t step) {
  const std::size_t cuts =
      std::min((kWantedItems - 1) / blocks.size() + 1, (columns - 1) / step + 1);
  if (cuts == 1) return blocks;
  const std::size_t width = ((columns - 1) / cuts / step + 1) * step;
  std::vector<Block> cut;
  for (const Block& block : blocks) {
    for (std::size_t column = 0; column < columns; column += width) {
      cut.push_back(block);
      cut.back().first_column = column;
      cut.back().last_column = std::min(columns, column + width);
    }
  }
  return cut;
}

// Index of the first block of each item, and the number of blocks.
std::vector<std::size_t> JoinBlocks(const std::vector<Block>& blocks, std::size_t depth) {
  std::vector<std::size_t> items = {0};
  std::size_t products = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    products += blocks[i].rows * depth * (blocks[i].last_column - blocks[i].first_column);
    if (products >= kProductsPerItem) {
      items.push_back(i + 1);
      products = 0;
    }
  }
  if (items.back() != blocks.size()) items.push_back(blocks.size());
  return items;
}

class GatherMmOp : public Op {
 public:
  GatherMmOp(const KernelInfo& info, DType dtype, Target target)
      : check_(info.op()),
        batch_axes_(info.Int(names::kNumBatchAxes, names::kNumBatchAxesDefault)),
        transposed_(info.Int(names::kTransposeRhs, names::kTransposeRhsDefault) != 0),
        dtype_(dtype),
        kernel_(FindGatherMm(target, dtype,
                             transposed_ ? GatherMmLayout::kTransposed : GatherMmLayout::kRows)),
        packed_kernel_(FindGatherMm(target, dtype, GatherMmLayout::kPacked)),
        left_(GatherMmLeftOf(target, dtype)),
        target_(target),
        pack_left_(FindGatherMmPackLeft(target, dtype)),
        widen_(FindWiden(target, dtype)),
        deterministic_(info.deterministic()),
        constant_(info, info.Constant(names::kRhsInput), transposed_, dtype, target) {
    if (!info.float32_tiles() || dtype != DType::kFloat32) return;
    parts_kernels_ = FindGatherMmOfParts(target);
    if (parts_kernels_.product != nullptr) {
      parts_ = PackedParts(info.Constant(names::kRhsInput), transposed_, parts_kernels_);
    }
  }

  void Compute(const KernelContext& context) const override {
    const GatherOperand lhs(check_, "lhs", context.Input(names::kLhsInput), "lhs_indices",
                            context.Input(names::kLhsIndicesInput), batch_axes_, dtype_);
    const GatherOperand rhs(check_, "rhs", context.Input(names::kRhsInput), "rhs_indices",
                            context.Input(names::kRhsIndicesInput), batch_axes_, dtype_);
    const auto shapes = [&] { return lhs.Text() + "; " + rhs.Text(); };
    if (lhs.columns() != (transposed_ ? rhs.columns() : rhs.rows())) {
      check_.Fail(std::string("the last size of lhs must be the ") +
                  (transposed_ ? "last size" : "size before the last") + " of rhs: " + shapes());
    }
    Shape batch;
    if (!BroadcastShapes({lhs.shape().begin(), lhs.shape().end() - 2},
                         {rhs.shape().begin(), rhs.shape().end() - 2}, &batch)) {
      check_.Fail("the batch axes do not broadcast: " + shapes());
    }
    Shape shape = batch;
    shape.push_back(lhs.shape()[lhs.shape().size() - 2]);
    shape.push_back(rhs.shape()[rhs.shape().size() - (transposed_ ? 2 : 1)]);
    auto* const output = static_cast<char*>(context.Output(0, shape));
    const std::size_t elements = ElementCount(shape);
    if (elements == 0) return;
    if (lhs.columns() == 0) {
      std::memset(output, 0, elements * SizeOf(dtype_));
      return;
    }
    Multiply(context, lhs, rhs, batch, output);
  }

 private:
  void Multiply(const KernelContext& context, const GatherOperand& lhs, const GatherOperand& rhs,
                const Shape& batch, char* output) const {
    const std::size_t depth = lhs.columns();
    const std::size_t columns = transposed_ ? rhs.rows() : rhs.columns();
    const std::size_t left_bytes = SizeOf(left_.dtype);
    const std::unique_ptr<char[]> widened = Widen(context, lhs);
    const SortedRows rows = SortRows(lhs, batch, MatricesOf(rhs, batch), rhs.count(),
                                     {widened ? widened.get() : lhs.data(), depth * left_bytes,
                                      output, columns * SizeOf(dtype_)});
    if (parts_.Has(rhs.data())) {
      const SortedRows others = MultiplyParts(context, rows, depth, columns);
      if (!others.left.empty()) MultiplyRows(context, rhs, others, columns);
    } else {
      MultiplyRows(context, rhs, rows, columns);
    }
  }

  void MultiplyRows(const KernelContext& context, const GatherOperand& rhs, const SortedRows& rows,
                    std::size_t columns) const {
    const std::size_t depth = transposed_ ? rhs.columns() : rhs.rows();
    std::vector<Block> blocks = CutBlocks(rows.starts, columns, left_);
    const void* packed = constant_.Find(rhs.data());
    ScratchMemory packed_now;
    if (packed == nullptr && deterministic_) {
      // Few and many rows are summed in the same order only if the matrix is packed.
      packed_now = PackRight(context, rhs, depth, columns);
      packed = packed_now.get();
    }
    const GatherMmKernel kernel = packed == nullptr ? kernel_ : packed_kernel_;
    const auto* const right = static_cast<const char*>(packed == nullptr ? rhs.data() : packed);
    const std::size_t matrix_bytes = packed == nullptr
                                         ? depth * columns * SizeOf(dtype_)
                                         : GatherMmPackedBytes(target_, dtype_, depth, columns);
    const ScratchMemory packed_rows =
        Pack(context, left_, depth, &blocks, [&](const Block& block, void* to) {
          pack_left_(rows.left.data() + block.first_row, block.rows, depth, to);
        });
    RunBlocks(context, CutColumns(blocks, columns, left_.column_step), depth, kGatherMmScratchBytes,
              [&](const Block& block, void* scratch) {
                kernel({rows.left.data() + block.first_row,
                        packed_rows.get() + block.packed_row * left_.RowBytes(depth),
                        rows.output.data() + block.first_row, right + block.matrix * matrix_bytes,
                        block.rows, depth, columns, block.first_column, block.last_column},
                       scratch);
              });
  }

  /// Multiplies by tiles. Returns the rows for which they are too few, or cannot hold the accuracy.
  SortedRows MultiplyParts(const KernelContext& context, const SortedRows& rows, std::size_t depth,
                           std::size_t columns) const {
    const GatherMmLeft left = PartsLeft();
    std::vector<PartsRow> states(rows.left.size(), PartsRow::kOther);
    // Rows that are packed at once: for many of them, the next ones then take the same memory.
    std::vector<Block> all = CutBlocks(rows.starts, columns, left);
    all.erase(std::remove_if(all.begin(), all.end(),
                             [&](const Block& block) { return block.rows <= left.few_rows; }),
              all.end());
    for (std::size_t first = 0; first < all.size(); first += kPackedBlocks) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
      std::vector<Block> blocks(
          begin, begin + static_cast<std::ptrdiff_t>(std::min(kPackedBlocks, all.size() - first)));
      const ScratchMemory packed =
          Pack(context, left, depth, &blocks, [&](const Block& block, void* to) {
            parts_kernels_.pack_left(rows.left.data() + block.first_row, block.rows, depth,
                                     parts_.ExactRows(block.matrix), to,
                                     states.data() + block.first_row);
          });
      RunBlocks(context, CutColumns(blocks, columns, left.column_step), depth, kPartsScratchBytes,
                [&](const Block& block, void* scratch) {
                  parts_kernels_.product(
                      {{rows.left.data() + block.first_row,
                        packed.get() + block.packed_row * left.RowBytes(depth),
                        rows.output.data() + block.first_row, parts_.Matrix(block.matrix),
                        block.rows, depth, columns, block.first_column, block.last_column},
                       states.data() + block.first_row},
                      scratch);
                });
    }
    return Select(rows, states);
  }

  /// The rows of state kOther.
  static SortedRows Select(const SortedRows& rows, const std::vector<PartsRow>& states) {
    SortedRows chosen;
    for (std::size_t matrix = 0; matrix + 1 < rows.starts.size(); ++matrix) {
      chosen.starts.push_back(chosen.left.size());
      for (std::size_t row = rows.starts[matrix]; row < rows.starts[matrix + 1]; ++row) {
        if (states[row] != PartsRow::kOther) continue;
        chosen.left.push_back(rows.left[row]);
        chosen.output.push_back(rows.output[row]);
      }
    }
    chosen.starts.push_back(chosen.left.size());
    return chosen;
  }

  /// Calls `body(block, scratch)` for each block, on onnxruntime's threads.
  template <class Body>
  static void RunBlocks(const KernelContext& context, const std::vector<Block>& blocks,
                        std::size_t depth, std::size_t scratch_bytes, const Body& body) {
    const std::vector<std::size_t> items = JoinBlocks(blocks, depth);
    RunItems(context, items.size() - 1, scratch_bytes, [&](std::size_t item, void* scratch) {
      for (std::size_t i = items[item]; i < items[item + 1]; ++i) body(blocks[i], scratch);
    });
  }

  /// Packs the matrices of rhs.
  ScratchMemory PackRight(const KernelContext& context, const GatherOperand& rhs, std::size_t depth,
                          std::size_t columns) const {
    const std::size_t bytes = GatherMmPackedBytes(target_, dtype_, depth, columns);
    ScratchMemory packed = AllocateScratch(rhs.count() * bytes);
    const GatherMmPackRightKernel pack = FindGatherMmPackRight(target_, dtype_, transposed_);
    context.ParallelFor(rhs.count(), [&](std::size_t i) {
      const auto* matrices = static_cast<const char*>(rhs.data());
      pack(matrices + i * depth * columns * SizeOf(dtype_), depth, columns,
           packed.get() + i * bytes);
    });
    return packed;
  }

  /// Packs the rows of the large blocks by `pack(block, to)`, and records their positions.
  template <class PackBlock>
  static ScratchMemory Pack(const KernelContext& context, const GatherMmLeft& left,
                            std::size_t depth, std::vector<Block>* blocks, const PackBlock& pack) {
    std::size_t packed_rows = 0;
    for (Block& block : *blocks) {
      block.packed_row = packed_rows;
      if (block.rows > left.few_rows) packed_rows += left.PackedRows(block.rows);
    }
    const std::size_t row_bytes = left.RowBytes(depth);
    ScratchMemory packed = AllocateScratch(packed_rows * row_bytes);
    if (packed_rows == 0) return packed;
    context.ParallelFor(blocks->size(), [&](std::size_t i) {
      const Block& block = (*blocks)[i];
      if (block.rows > left.few_rows) pack(block, packed.get() + block.packed_row * row_bytes);
    });
    return packed;
  }

  /// The matrices of lhs in the type of left_; null if they already have it.
  std::unique_ptr<char[]> Widen(const KernelContext& context, const GatherOperand& lhs) const {
    if (left_.dtype == dtype_) return nullptr;
    const std::size_t count = lhs.count() * lhs.rows() * lhs.columns();
    std::unique_ptr<char[]> wide(new char[count * SizeOf(WideDType(dtype_))]);
    SplitRows(context, count, 1, count, [&](std::size_t first, std::size_t elements) {
      widen_(static_cast<const char*>(lhs.data()) + first * SizeOf(dtype_), elements,
             wide.get() + first * SizeOf(WideDType(dtype_)));
    });
    return wide;
  }

  Checker check_;
  std::int64_t batch_axes_;
  bool transposed_;
  DType dtype_;
  GatherMmKernel kernel_;
  GatherMmKernel packed_kernel_;
  GatherMmLeft left_;
  Target target_;
  GatherMmPackLeftKernel pack_left_;
  WidenKernel widen_;
  bool deterministic_;
  PackedConstant constant_;  // of rhs
  GatherMmOfParts parts_kernels_;
  PackedParts parts_;  // of rhs; constant_ is for few rows
};

}  // namespace

const OpDefinition kGatherMmOp = Define<GatherMmOp>(names::kComposite, NoShape);

}  // namespace coreai
