#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "ops/few_bits/expert_weights.h"
#include "ops/few_bits/few_bits_op.h"
#include "ops/gather_mm/gather_operand.h"
#include "ops/gather_mm/sorted_rows.h"
#include "ops/item_pool.h"
#include "ops/op_list.h"
#include "ops/row_split.h"

namespace coreai {
namespace {

namespace names = schema::gather_mm_nbits;
static_assert(names::kInputCount == 10 && names::kAttributeCount == 4, "the declaration changed");

class GatherMmNbitsOp : public Op {
 public:
  GatherMmNbitsOp(const KernelInfo& info, DType dtype, Target target)
      : check_(info.op()),
        dtype_(dtype),
        op_(info, check_, dtype, target),
        constants_(op_.attributes(), [&](std::size_t input) { return info.Constant(input); }) {
    if (dtype == DType::kFloat64 || !constants_.IsComplete()) return;
    constants_.Check(check_);
    // Beside a size of 0, others may be too large to count to.
    if (constants_.rows() == 0 || constants_.groups() == 0) return;
    packed_.reserve(constants_.count());
    for (std::size_t i = 0; i < constants_.count(); ++i)
      packed_.emplace_back(constants_.Expert(i), info);
  }

  void Compute(const KernelContext& context) const override {
    const ExpertWeights weights(op_.attributes(),
                                [&](std::size_t input) { return context.Input(input); });
    weights.Check(check_);
    const GatherOperand lhs(check_, "lhs", context.Input(names::kLhsInput), "", {}, 0, dtype_);
    const TensorView chosen = context.Input(names::kIndicesInput);
    const std::vector<std::size_t> indices =
        ReadIndices(check_, "indices", chosen, weights.shape()[0]);
    const std::int64_t depth = lhs.shape().back();
    const auto groups = static_cast<std::int64_t>(weights.groups());
    const auto group = static_cast<std::int64_t>(op_.attributes().group);
    if (depth % group != 0 || depth / group != groups) {
      check_.Fail("input lhs has shape " + ToString(lhs.shape()) + ", expected a last size of " +
                  std::to_string(groups) + " groups of " + std::to_string(group));
    }
    Shape batch;
    if (!BroadcastShapes({lhs.shape().begin(), lhs.shape().end() - 2}, chosen.shape, &batch)) {
      check_.Fail("the batch axes do not broadcast: " + lhs.Text() + "; indices of shape " +
                  ToString(chosen.shape));
    }
    Shape shape = batch;
    shape.push_back(lhs.shape()[lhs.shape().size() - 2]);
    shape.push_back(weights.shape()[1]);
    auto* const output = static_cast<char*>(context.Output(0, shape));
    const std::size_t elements = ElementCount(shape);
    if (elements == 0) return;
    if (depth == 0) {
      std::memset(output, 0, elements * SizeOf(dtype_));
      return;
    }
    std::vector<std::size_t> matrices = PlacesIn(chosen.shape, batch);
    for (std::size_t& matrix : matrices) matrix = indices[matrix];
    Multiply(context, weights,
             SortRows(lhs, batch, matrices, weights.count(),
                      {lhs.data(), lhs.columns() * SizeOf(dtype_), output,
                       weights.rows() * SizeOf(dtype_)}));
  }

 private:
  void Multiply(const KernelContext& context, const ExpertWeights& weights,
                const SortedRows& rows) const {
    const std::size_t row_bytes = weights.depth() * SizeOf(WideDType(dtype_));
    const std::size_t output_bytes = weights.rows() * SizeOf(dtype_);
    const ScratchMemory left = Prepared(context, weights, rows);
    const bool packed = !packed_.empty() && weights.SameMemory(constants_);
    for (std::size_t i = 0; i < weights.count(); ++i) {
      const std::size_t first = rows.starts[i], count = rows.starts[i + 1] - first;
      if (count == 0) continue;
      const ScratchMemory joined = AllocateScratch(count == 1 ? 1 : count * output_bytes);
      char* const output = count == 1 ? static_cast<char*>(rows.output[first]) : joined.get();
      op_.Multiply(context, weights.Expert(i), packed ? &packed_[i] : nullptr,
                   {left.get() + first * row_bytes, count, weights.rows(), nullptr, output});
      for (std::size_t row = 0; count > 1 && row < count; ++row) {
        std::memcpy(rows.output[first + row], output + row * output_bytes, output_bytes);
      }
    }
  }

  /// All rows in their new order, as the product expects them.
  ScratchMemory Prepared(const KernelContext& context, const ExpertWeights& weights,
                         const SortedRows& rows) const {
    const std::size_t row_bytes = weights.depth() * SizeOf(WideDType(dtype_));
    ScratchMemory prepared = AllocateScratch(rows.left.size() * row_bytes);
    SplitRows(context, rows.left.size(), weights.depth(), rows.left.size(),
              [&](std::size_t first, std::size_t count) {
                for (std::size_t row = first; row < first + count; ++row) {
                  op_.Prepare(rows.left[row], weights.groups(), weights.has_palette(),
                              prepared.get() + row * row_bytes);
                }
              });
    return prepared;
  }

  Checker check_;
  DType dtype_;
  FewBitsOp op_;
  ExpertWeights constants_;            // those that are packed
  std::vector<PackedFewBits> packed_;  // by expert; empty if they are not constant
};

}  // namespace

const OpDefinition kGatherMmNbitsOp = Define<GatherMmNbitsOp>(names::kComposite, NoShape);

}  // namespace coreai
