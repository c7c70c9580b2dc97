#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/few_bits/few_bits.h"
#include "kernels/gather_mm/gather_mm.h"
#include "kernels/gather_mm/widen.h"
#include "kernels/norms/residual_add.h"
#include "ops/checks.h"
#include "ops/item_pool.h"
#include "ops/op_list.h"

namespace coreai {
namespace {

namespace names = schema::add_low_rank;
static_assert(names::kInputCount == 4 && names::kAttributeCount == 0, "the declaration changed");

// Rows that are multiplied at a time, so that there is work for several threads.
constexpr std::size_t kRowsOfItem = 32;

// The matrices of a factor in the compute type, one for all rows or one for each entry of the
// leading axes.
class Factor {
 public:
  Factor(const TensorView& tensor, DType dtype, WidenKernel widen, GatherMmPackRightKernel pack,
         Target target)
      : depth_(Count(tensor, 2)), columns_(Count(tensor, 1)) {
    const DType wide = WideDType(dtype);
    const std::size_t elements = ElementCount(tensor.shape), matrix = depth_ * columns_;
    count_ = elements / matrix;
    bytes_ = matrix * SizeOf(wide);
    data_ = static_cast<const char*>(tensor.data);
    if (dtype != wide) {
      wide_ = AllocateScratch(elements * SizeOf(wide));
      widen(data_, elements, wide_.get());
      data_ = wide_.get();
    }
    if (pack == nullptr) return;
    const std::size_t packed = GatherMmPackedBytes(target, wide, depth_, columns_);
    packed_ = AllocateScratch(count_ * packed);
    for (std::size_t i = 0; i < count_; ++i) {
      pack(data_ + i * bytes_, depth_, columns_, packed_.get() + i * packed);
    }
    data_ = packed_.get();
    bytes_ = packed;
  }

  const void* Matrix(std::size_t index) const {
    return count_ == 1 ? data_ : data_ + index * bytes_;
  }
  std::size_t depth() const { return depth_; }
  std::size_t columns() const { return columns_; }

 private:
  static std::size_t Count(const TensorView& tensor, std::size_t from_end) {
    return static_cast<std::size_t>(tensor.shape[tensor.shape.size() - from_end]);
  }

  std::size_t depth_, columns_, count_, bytes_;
  const char* data_;
  ScratchMemory wide_, packed_;
};

class AddLowRankOp : public Op {
 public:
  AddLowRankOp(const KernelInfo& info, DType dtype, Target target)
      : check_(info.op()),
        dtype_(dtype),
        wide_(WideDType(dtype)),
        target_(target),
        // Few and many rows are summed in the same order only if a matrix is packed.
        kernel_(FindGatherMm(
            target, wide_, info.deterministic() ? GatherMmLayout::kPacked : GatherMmLayout::kRows)),
        pack_(info.deterministic() ? FindGatherMmPackRight(target, wide_, false) : nullptr),
        left_(GatherMmLeftOf(target, wide_)),
        pack_left_(FindGatherMmPackLeft(target, wide_)),
        widen_(FindWiden(target, dtype)),
        add_(FindResidualAdd(target, wide_)),
        finish_(FindFinish(target)) {}

  void Compute(const KernelContext& context) const override {
    const TensorView input = context.Input(names::kInputInput);
    auto* const output = static_cast<char*>(context.Output(0, input.shape));
    // Without an adapter, no other input is looked at: each takes 0.1 µs.
    if (context.IsEmpty(names::kDownInput)) return Copy(input, output);
    const TensorView x = context.Input(names::kXInput), down = context.Input(names::kDownInput),
                     up = context.Input(names::kUpInput);
    CheckSizes(input, x, down, up);
    const auto nothing = [](const TensorView& tensor) { return ElementCount(tensor.shape) == 0; };
    if (nothing(input) || nothing(x)) return Copy(input, output);
    Add(context, input, x, Factor(down, dtype_, widen_, pack_, target_),
        Factor(up, dtype_, widen_, pack_, target_), output);
  }

 private:
  void Copy(const TensorView& input, char* output) const {
    const std::size_t bytes = ElementCount(input.shape) * SizeOf(dtype_);
    if (output != input.data && bytes != 0) std::memcpy(output, input.data, bytes);
  }

  void CheckSizes(const TensorView& input, const TensorView& x, const TensorView& down,
                  const TensorView& up) const {
    check_.Require("input", input, dtype_);
    check_.Require("x", x, dtype_);
    check_.Require("down", down, dtype_);
    check_.Require("up", up, dtype_);
    const auto lead = [](const Shape& shape, std::size_t last) {
      return Shape(shape.begin(), shape.end() - static_cast<std::ptrdiff_t>(last));
    };
    const auto fits = [&](const TensorView& factor) {
      const Shape axes = lead(factor.shape, 2);
      return axes == lead(input.shape, 2) ||
             (axes.size() + 2 <= input.shape.size() &&
              std::all_of(axes.begin(), axes.end(), [](std::int64_t size) { return size == 1; }));
    };
    const auto is_matrix = [](const TensorView& tensor) { return tensor.shape.size() >= 2; };
    if (is_matrix(input) && is_matrix(x) && is_matrix(down) && is_matrix(up) &&
        lead(x.shape, 1) == lead(input.shape, 1) && fits(down) && fits(up) &&
        x.shape.back() == down.shape[down.shape.size() - 2] &&
        down.shape.back() == up.shape[up.shape.size() - 2] &&
        up.shape.back() == input.shape.back()) {
      return;
    }
    check_.Fail("inputs input, x, down and up have shapes " + ToString(input.shape) + ", " +
                ToString(x.shape) + ", " + ToString(down.shape) + " and " + ToString(up.shape) +
                ", expected [..., T, N], [..., T, K], [..., K, R] and [..., R, N]");
  }

  void Add(const KernelContext& context, const TensorView& input, const TensorView& x,
           const Factor& down, const Factor& up, char* output) const {
    const std::size_t depth = down.depth(), rank = down.columns(), columns = up.columns();
    const auto tokens = static_cast<std::size_t>(input.shape[input.shape.size() - 2]);
    const std::size_t parts = (tokens - 1) / kRowsOfItem + 1;
    const std::size_t items = ElementCount(x.shape) / depth / tokens * parts;
    const std::size_t most = std::min(tokens, kRowsOfItem), size = SizeOf(wide_);
    // The memory of an item: rows of x, of both products, and of the input.
    const auto aligned = [](std::size_t bytes) { return (bytes + 63) / 64 * 64; };
    const std::size_t of_left =
        aligned(left_.PackedRows(most) * left_.RowBytes(std::max(depth, rank)));
    const std::size_t of_x = aligned(most * depth * size), of_rank = aligned(most * rank * size);
    const std::size_t of_sums = aligned(most * columns * size);
    const std::size_t bytes = kGatherMmScratchBytes + of_left + of_x + of_rank + 2 * of_sums;
    RunItems(context, items, bytes, [&](std::size_t item, void* memory) {
      char* place = static_cast<char*>(memory) + kGatherMmScratchBytes;
      const auto take = [&](std::size_t taken) {
        char* const here = place;
        place += taken;
        return here;
      };
      char* const packed = take(of_left);
      char* const wide_x = take(of_x);
      char* const reduced = take(of_rank);
      char* const sums = take(of_sums);
      char* const wide_input = take(of_sums);
      const std::size_t batch = item / parts, first = item % parts * kRowsOfItem;
      const std::size_t rows = std::min(kRowsOfItem, tokens - first);
      const std::size_t row = batch * tokens + first, count = rows * columns;
      const std::size_t at = row * columns * SizeOf(dtype_);
      const auto* const input_rows = static_cast<const char*>(input.data) + at;
      const auto* const x_rows = static_cast<const char*>(x.data) + row * depth * SizeOf(dtype_);
      const bool is_wide = dtype_ == wide_;
      if (!is_wide) widen_(x_rows, rows * depth, wide_x);
      Multiply(is_wide ? x_rows : wide_x, rows, down, batch, {packed, memory}, reduced);
      Multiply(reduced, rows, up, batch, {packed, memory}, sums);
      if (is_wide) return add_(input_rows, sums, count, output + at);
      widen_(input_rows, count, wide_input);
      finish_(reinterpret_cast<const float*>(sums), reinterpret_cast<const float*>(wide_input),
              count, dtype_, output + at);
    });
  }

  struct Scratch {
    char* packed;
    void* memory;
  };

  /// Multiplies rows of the compute type by a matrix of a factor.
  void Multiply(const char* rows, std::size_t count, const Factor& factor, std::size_t index,
                const Scratch& scratch, char* products) const {
    const void* left[kRowsOfItem];
    void* output[kRowsOfItem];
    for (std::size_t r = 0; r < count; ++r) {
      left[r] = rows + r * factor.depth() * SizeOf(wide_);
      output[r] = products + r * factor.columns() * SizeOf(wide_);
    }
    if (count > left_.few_rows) pack_left_(left, count, factor.depth(), scratch.packed);
    kernel_({left, scratch.packed, output, factor.Matrix(index), count, factor.depth(),
             factor.columns(), 0, factor.columns()},
            scratch.memory);
  }

  Checker check_;
  DType dtype_;
  DType wide_;
  Target target_;
  GatherMmKernel kernel_;
  GatherMmPackRightKernel pack_;  // null unless factors are packed
  GatherMmLeft left_;
  GatherMmPackLeftKernel pack_left_;
  WidenKernel widen_;
  ResidualAddKernel add_;
  FinishKernel finish_;
};

}  // namespace

const OpDefinition kAddLowRankOp =
    Define<AddLowRankOp>(names::kComposite, ShapeOfFirstInput).InPlace();

}  // namespace coreai
