#include "kernels/attention/rope.h"

#include <algorithm>
#include <string>

#include "ops/attention/rope_angles.h"
#include "ops/checks.h"
#include "ops/item_pool.h"
#include "ops/op_list.h"
#include "ops/row_parameter.h"
#include "ops/row_split.h"

namespace coreai {
namespace {

namespace names = schema::rope;
static_assert(names::kInputCount == 6 && names::kAttributeCount == 4, "the declaration changed");

// Number of rows whose part of the table stays in the first-level cache for all heads.
constexpr std::size_t kMaxTileRows = 32;

class RopeOp : public Op {
 public:
  RopeOp(const KernelInfo& info, DType dtype, Target target)
      : check_(info.op()),
        dims_(info.Int(names::kDims, names::kDimsDefault)),
        frequencies_(dtype, info.Float(names::kBase, names::kBaseDefault),
                     info.Float(names::kScale, names::kScaleDefault)),
        dtype_(dtype),
        angles_(FindRopeAngles(target, WideDType(dtype))) {
    const bool interleaved = info.Int(names::kInterleaved, names::kInterleavedDefault) != 0;
    kernels_[0] = FindRope(target, dtype, false, interleaved);
    kernels_[1] = FindRope(target, dtype, true, interleaved);
  }

  void Compute(const KernelContext& context) const override {
    const TensorView input = context.Input(names::kInputInput);
    check_.Require("input", input, dtype_);
    const Shape& shape = input.shape;
    if (shape.size() != 3 && shape.size() != 4) {
      check_.Fail("input of shape " + ToString(shape) + " must have rank 3 or 4");
    }
    const std::int64_t lanes = shape.back();
    const std::int64_t rotated = 0 < dims_ && dims_ < lanes ? dims_ : lanes;
    if (rotated % 2 != 0) {
      check_.Fail("the number of rotated lanes must be even, is " + std::to_string(rotated) +
                  " with dims " + std::to_string(dims_) + " and input of shape " + ToString(shape));
    }
    if (ElementCount(shape) == 0) {
      // The other sizes may be too large for a table.
      context.Output(0, shape);
      return;
    }
    RopeSizes sizes = {};
    sizes.batch = shape.size() == 4 ? static_cast<std::size_t>(shape[0]) : 1;
    sizes.heads = static_cast<std::size_t>(shape[shape.size() - 3]);
    sizes.rows = static_cast<std::size_t>(shape[shape.size() - 2]);
    sizes.half = static_cast<std::size_t>(rotated / 2);

    const TensorView cos = context.Input(names::kCosInput);
    const TensorView sin = context.Input(names::kSinInput);
    if (cos && sin) {
      Shape pairs = shape;
      pairs.back() = rotated / 2;
      const RowParameterPair table(check_, "cos", cos, "sin", sin, pairs, pairs.size() - 1, dtype_);
      return RunGiven(context, input, sizes, table);
    }
    const TensorView freqs = context.Input(names::kFreqsInput);
    const RopeComputedTable table(
        check_, context.Input(names::kPositionIdsInput), context.Input(names::kOffsetInput), shape,
        sizes,
        freqs ? frequencies_.Given(check_, freqs, sizes.half) : frequencies_.Default(sizes.half),
        dtype_, angles_);
    RunComputed(context, input, sizes, table);
  }

 private:
  void RunGiven(const KernelContext& context, const TensorView& input, const RopeSizes& sizes,
                const RowParameterPair& table) const {
    const RopeKernel kernel = kernels_[table.wide() ? 1 : 0];
    const auto moves = [&](std::size_t axis) {
      return table.first.Moves(axis) || table.second.Moves(axis);
    };
    RunTiles(context, input, sizes, moves(2), moves(1), 0,
             [&](RopeRows& rows, std::size_t batch, std::size_t head, std::size_t row, void*) {
               const std::size_t index = (batch * sizes.heads + head) * sizes.rows + row;
               rows.cos = table.first.Row(index);
               rows.sin = table.second.Row(index);
               rows.cos_stride = table.first.Moves(0) ? sizes.half : 0;
               rows.sin_stride = table.second.Moves(0) ? sizes.half : 0;
               kernel(rows);
             });
  }

  void RunComputed(const KernelContext& context, const TensorView& input, const RopeSizes& sizes,
                   const RopeComputedTable& table) const {
    const std::size_t row_bytes = sizes.half * SizeOf(WideDType(dtype_));
    RunTiles(
        context, input, sizes, table.MovesAlongBatch(), table.MovesAlongHeads(), 2 * row_bytes,
        [&](RopeRows& rows, std::size_t batch, std::size_t head, std::size_t row, void* scratch) {
          table.Fill(batch, head, row, rows.rows, scratch);
          rows.cos = scratch;
          rows.sin = static_cast<const char*>(scratch) + rows.rows * row_bytes;
          rows.cos_stride = rows.sin_stride = sizes.half;
          kernels_[1](rows);
        });
  }

  /// Splits the input into groups of heads that share a table, and those into tiles of rows. `body`
  /// receives a tile without its table, its position, and scratch of `scratch_row` bytes per row.
  template <class Body>
  void RunTiles(const KernelContext& context, const TensorView& input, const RopeSizes& sizes,
                bool by_batch, bool by_head, std::size_t scratch_row, const Body& body) const {
    auto* const output = static_cast<char*>(context.Output(0, input.shape));
    const auto head_dim = static_cast<std::size_t>(input.shape.back());
    const std::size_t outer = sizes.batch * sizes.heads;
    const std::size_t heads = by_head ? 1 : by_batch ? sizes.heads : outer;
    const std::size_t groups = outer / heads;
    const std::size_t item_rows =
        std::max<std::size_t>(1, kElementsPerThreadItem / (heads * head_dim));
    const std::size_t tile = std::min({item_rows, kMaxTileRows, sizes.rows});
    const std::size_t tiles = (sizes.rows - 1) / tile + 1;
    // If a group is less work than a thread is worth, an item consists of several groups.
    const std::size_t tiles_per_item = tiles == 1 ? std::max<std::size_t>(1, item_rows / tile) : 1;
    const std::size_t all = groups * tiles;
    RunItems(context, (all - 1) / tiles_per_item + 1, tile * scratch_row,
             [&](std::size_t item, void* scratch) {
               const std::size_t last = std::min(all, (item + 1) * tiles_per_item);
               for (std::size_t i = item * tiles_per_item; i < last; ++i) {
                 const std::size_t first_head = i / tiles * heads;
                 const std::size_t row = i % tiles * tile;
                 const std::size_t offset =
                     (first_head * sizes.rows + row) * head_dim * SizeOf(dtype_);
                 RopeRows rows = {};
                 rows.input = static_cast<const char*>(input.data) + offset;
                 rows.output = output + offset;
                 rows.heads = heads;
                 rows.rows = std::min(tile, sizes.rows - row);
                 rows.head_dim = head_dim;
                 rows.half = sizes.half;
                 rows.head_stride = sizes.rows * head_dim;
                 body(rows, first_head / sizes.heads, first_head % sizes.heads, row, scratch);
               }
             });
  }

  Checker check_;
  std::int64_t dims_;
  RopeFrequencies frequencies_;
  DType dtype_;
  RopeKernel kernels_[2];  // for a table in the op's type, in the compute type
  RopeAnglesKernel angles_;
};

}  // namespace

const OpDefinition kRopeOp = Define<RopeOp>(names::kComposite, ShapeOfFirstInput).InPlace();

}  // namespace coreai
