#include "kernels/convolution/convolution.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gather_mm/gather_mm.h"
#include "kernels/gather_mm/widen.h"
#include "ops/checks.h"
#include "ops/item_pool.h"
#include "ops/op_list.h"
#include "ops/row_split.h"
#include "ops/widened.h"

namespace coreai {
namespace {

namespace names = schema::convolution;
static_assert(names::kInputCount == 3 && names::kAttributeCount == 4, "the declaration changed");

// A multiple of the panel width of every target.
constexpr std::size_t kColumnStep = 48;
// Bytes of the packed windows of an item, which stay in the second-level cache.
constexpr std::size_t kColumnBytes = 512 * 1024;
// Bytes of the filters that are multiplied by all windows of an item, which stay there too.
constexpr std::size_t kFilterBytes = 384 * 1024;
// The number of items of a call for which windows, then filters, are divided.
constexpr std::size_t kWantedItems = 8;
// Padded planes have a size that fits into 32 bits.
constexpr std::int64_t kLargestPlane = std::int64_t{1} << 30;
// Bounds for the padded parts of planes: 3 MB.
constexpr std::size_t kPlaneStride = 4, kPlaneReach = 64;
// The number of multiply-adds that is worth a thread, as in gather_mm.
constexpr std::size_t kProductsPerItem = 256 * 1024;

std::size_t Ceil(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

/// A convolution of given shapes.
struct Problem {
  ConvolutionSizes sizes;
  std::size_t images, channels, filters;  // of a group
  std::size_t groups;

  std::size_t depth() const { return sizes.window_size() * channels + 1; }
  std::size_t plane() const { return sizes.height * sizes.width; }
  bool of_planes() const {
    const bool near = (sizes.window_height - 1) * sizes.dilation_y <= kPlaneReach &&
                      (sizes.window_width - 1) * sizes.dilation_x <= kPlaneReach;
    return channels == 1 && near && std::max(sizes.stride_y, sizes.stride_x) <= kPlaneStride;
  }
};

/// Filters that one call of a product multiplies: equal parts of a group.
struct FilterBlocks {
  std::size_t count, size;

  FilterBlocks(std::size_t filters, std::size_t filter_bytes) {
    const std::size_t most =
        std::min(std::max<std::size_t>(kFilterBytes / filter_bytes, 32), kGatherMmMaxRows);
    size = Ceil(Ceil(filters, Ceil(filters, most)), 8) * 8;
    count = Ceil(filters, size);
  }
};

/// The filters of all groups as rows of products, with the bias as their last elements.
ScratchMemory PackFilters(const Problem& p, const void* weight, const void* bias, DType dtype,
                          Target target) {
  const std::size_t size = SizeOf(dtype), depth = p.depth(), window = p.sizes.window_size();
  const FilterBlocks blocks(p.filters, depth * size);
  const GatherMmPackLeftKernel pack = FindGatherMmPackLeft(target, dtype);
  ScratchMemory packed = AllocateScratch(p.groups * p.filters * depth * size);
  const ScratchMemory rows = AllocateScratch(blocks.size * depth * size);
  const auto* from = static_cast<const char*>(weight);
  const auto* one_bias = static_cast<const char*>(bias);
  for (std::size_t group = 0; group < p.groups; ++group) {
    for (std::size_t first = 0; first < p.filters; first += blocks.size) {
      const std::size_t count = std::min(blocks.size, p.filters - first);
      char* const to = packed.get() + (group * p.filters + first) * depth * size;
      // Few rows are read in place.
      char* const plain = count <= kGatherMmFewRows ? to : rows.get();
      const void* starts[kGatherMmMaxRows];
      for (std::size_t i = 0; i < count; ++i) {
        char* row = plain + i * depth * size;
        starts[i] = row;
        for (std::size_t place = 0; place < window; ++place) {
          for (std::size_t c = 0; c < p.channels; ++c, row += size) {
            std::memcpy(row, from + (c * window + place) * size, size);
          }
        }
        from += p.channels * window * size;
        std::memset(row, 0, size);
        if (one_bias != nullptr) std::memcpy(row, one_bias, size), one_bias += size;
      }
      if (plain != to) pack(starts, count, depth, to);
    }
  }
  return packed;
}

class ConvolutionOp : public Op {
 public:
  ConvolutionOp(const KernelInfo& info, DType dtype, Target target)
      : check_(info.op()),
        stride_(Read(info, names::kStride, 2, 1)),
        padding_(Read(info, names::kPadding, 4, 0)),
        dilation_(Read(info, names::kDilation, 2, 1)),
        groups_(info.Int(names::kGroups, names::kGroupsDefault)),
        dtype_(dtype),
        wide_(WideDType(dtype)),
        target_(target),
        multiply_(FindGatherMm(target, wide_, GatherMmLayout::kPacked)),
        pack_(FindConvolutionPack(target, wide_)),
        planes_(FindConvolutionPlanes(target, wide_)),
        widen_(FindWiden(target, dtype)),
        narrow_(FindNarrow(target, dtype)) {
    if (groups_ < 1) check_.Fail("attribute groups is " + std::to_string(groups_));
    const TensorView weight = info.Constant(names::kWeightInput);
    const TensorView bias = info.Constant(names::kBiasInput);
    if (!weight || weight.type != OnnxType(wide_) || weight.shape.size() != 4) return;
    const Problem problem = OfWeight(weight.shape);
    const bool biased = bias && bias.type == OnnxType(wide_) && bias.shape == BiasShape(weight);
    if ((bias && !biased) || weight.shape[0] % groups_ != 0 || problem.of_planes()) return;
    if (ElementCount(weight.shape) == 0) return;
    constant_ = PackFilters(problem, weight.data, bias.data, wide_, target_);
    constant_weight_ = weight.data;
    constant_bias_ = bias.data;
  }

  void Compute(const KernelContext& context) const override {
    const TensorView input = context.Input(names::kInputInput);
    const TensorView weight = context.Input(names::kWeightInput);
    const TensorView bias = context.Input(names::kBiasInput);
    check_.Require("input", input, dtype_);
    check_.Require("weight", weight, dtype_);
    if (bias) check_.Require("bias", bias, dtype_);
    const Problem problem = Checked(input, weight, bias);
    const auto windows = [&](std::size_t n) { return static_cast<std::int64_t>(n); };
    const Shape shape = {input.shape[0], weight.shape[0], windows(problem.sizes.out_height),
                         windows(problem.sizes.out_width)};
    auto* const output = static_cast<char*>(context.Output(0, shape));
    const std::size_t elements = ElementCount(shape);
    if (elements == 0) return;
    if (dtype_ == wide_) return Run(context, problem, input.data, weight, bias, output);
    const std::size_t count = ElementCount(input.shape);
    const ScratchMemory wide = AllocateScratch(count * SizeOf(wide_));
    const ScratchMemory result = AllocateScratch(elements * SizeOf(wide_));
    Convert(context, widen_, input.data, SizeOf(dtype_), count, wide.get(), SizeOf(wide_));
    Run(context, problem, wide.get(), weight, bias, result.get());
    Convert(context, narrow_, result.get(), SizeOf(wide_), elements, output, SizeOf(dtype_));
  }

 private:
  std::vector<std::size_t> Read(const KernelInfo& info, const char* name, std::size_t count,
                                std::int64_t least) const {
    const Shape values = info.Ints(name, Shape(count, least));
    const auto outside = [&](std::int64_t x) { return x < least || x >= kLargestPlane; };
    if (values.size() != count || std::any_of(values.begin(), values.end(), outside)) {
      check_.Fail(std::string("attribute ") + name + " is " + ToString(values) + ", expected " +
                  std::to_string(count) + " numbers of " + std::to_string(least) + " or more");
    }
    return {values.begin(), values.end()};
  }

  static Shape BiasShape(const TensorView& weight) { return {weight.shape[0]}; }

  Problem OfWeight(const Shape& weight) const {
    const auto size = [&](std::size_t axis) { return static_cast<std::size_t>(weight[axis]); };
    Problem problem = {};
    problem.groups = static_cast<std::size_t>(groups_);
    problem.channels = size(1);
    problem.filters = size(0) / problem.groups;
    problem.sizes.window_height = size(2);
    problem.sizes.window_width = size(3);
    problem.sizes.stride_y = stride_[0];
    problem.sizes.stride_x = stride_[1];
    problem.sizes.dilation_y = dilation_[0];
    problem.sizes.dilation_x = dilation_[1];
    problem.sizes.top = padding_[0];
    problem.sizes.left = padding_[1];
    return problem;
  }

  Problem Checked(const TensorView& input, const TensorView& weight, const TensorView& bias) const {
    const std::string shapes =
        "input of shape " + ToString(input.shape) + ", weight of shape " + ToString(weight.shape);
    if (input.shape.size() != 4 || weight.shape.size() != 4) {
      check_.Fail(shapes + " must have rank 4");
    }
    const Shape& w = weight.shape;
    // The number of groups may exceed that of the channels.
    const bool fits = w[1] == 0 ? input.shape[1] == 0
                                : input.shape[1] % w[1] == 0 && input.shape[1] / w[1] == groups_;
    if (w[0] % groups_ != 0 || !fits) {
      check_.Fail(shapes + " do not agree with attribute groups of " + std::to_string(groups_));
    }
    if (bias && bias.shape != BiasShape(weight)) {
      check_.Fail("input bias of shape " + ToString(bias.shape) +
                  " must have one element for each filter: " + shapes);
    }
    Problem problem = OfWeight(w);
    ConvolutionSizes& s = problem.sizes;
    problem.images = static_cast<std::size_t>(input.shape[0]);
    s.height = static_cast<std::size_t>(input.shape[2]);
    s.width = static_cast<std::size_t>(input.shape[3]);
    s.out_height = Windows(shapes, input.shape[2], w[2], 0);
    s.out_width = Windows(shapes, input.shape[3], w[3], 1);
    const std::size_t high = s.height + padding_[0] + padding_[2];
    if (high * (s.width + padding_[1] + padding_[3]) > static_cast<std::size_t>(kLargestPlane)) {
      check_.Fail(shapes + " with padding " + ToString({padding_.begin(), padding_.end()}) +
                  " has planes of more than 2^30 elements");
    }
    return problem;
  }

  /// The number of windows along an axis.
  std::size_t Windows(const std::string& shapes, std::int64_t size, std::int64_t window,
                      std::size_t axis) const {
    const auto dilation = static_cast<std::int64_t>(dilation_[axis]);
    const std::int64_t padded =
        size >= kLargestPlane
            ? 0
            : size + static_cast<std::int64_t>(padding_[axis] + padding_[axis + 2]);
    if (window < 1 || padded < 1 || padded > kLargestPlane || window > padded ||
        (window - 1) * dilation >= padded) {
      check_.Fail(shapes + " has no window, or more than 2^30 elements, in a padded axis");
    }
    return static_cast<std::size_t>((padded - 1 - (window - 1) * dilation) /
                                    static_cast<std::int64_t>(stride_[axis])) +
           1;
  }

  template <class Kernel>
  static void Convert(const KernelContext& context, Kernel kernel, const void* from,
                      std::size_t from_size, std::size_t count, char* to, std::size_t to_size) {
    SplitRows(context, count, 1, count, [&](std::size_t first, std::size_t here) {
      kernel(static_cast<const char*>(from) + first * from_size, here, to + first * to_size);
    });
  }

  void Run(const KernelContext& context, const Problem& problem, const void* input,
           const TensorView& weight, const TensorView& bias, char* output) const {
    const Widened filters(weight, dtype_);
    const Widened biases = bias ? Widened(bias, dtype_) : Widened();
    if (problem.of_planes()) {
      return RunPlanes(context, problem, input, filters.data(), biases.data(), output);
    }
    if (constant_ && weight.data == constant_weight_ && bias.data == constant_bias_) {
      return RunProducts(context, problem, input, constant_.get(), output);
    }
    const ScratchMemory packed =
        PackFilters(problem, filters.data(), biases.data(), wide_, target_);
    RunProducts(context, problem, input, packed.get(), output);
  }

  void RunPlanes(const KernelContext& context, const Problem& p, const void* input,
                 const void* weight, const void* bias, char* output) const {
    const std::size_t size = SizeOf(wide_), windows = p.sizes.windows();
    // The filters of an item fill the lanes of vectors.
    const std::size_t wanted = kProductsPerItem / (windows * p.sizes.window_size());
    const std::size_t per_item =
        Ceil(Ceil(wanted + 1, kConvolutionFilterStep) * kConvolutionFilterStep, p.filters);
    const std::size_t items = Ceil(p.groups, per_item);
    const auto at = [&](const void* data, std::size_t index) {
      return data == nullptr ? nullptr : static_cast<const char*>(data) + index * size;
    };
    RunItems(context, p.images * items, ConvolutionPlanesScratch(p.sizes),
             [&](std::size_t item, void* scratch) {
               const std::size_t image = item / items, group = item % items * per_item;
               const std::size_t groups = std::min(per_item, p.groups - group);
               const std::size_t first = group * p.filters;
               planes_({p.sizes, at(input, (image * p.groups + group) * p.plane()),
                        at(weight, first * p.sizes.window_size()), at(bias, first),
                        output + (image * p.groups * p.filters + first) * windows * size,
                        groups * p.filters, p.filters},
                       scratch);
             });
  }

  void RunProducts(const KernelContext& context, const Problem& p, const void* input,
                   const char* packed, char* output) const {
    const std::size_t size = SizeOf(wide_), windows = p.sizes.windows(), depth = p.depth();
    const std::size_t steps = std::min(kColumnBytes / (kColumnStep * depth * size),
                                       Ceil(windows, kColumnStep * kWantedItems));
    const std::size_t columns = std::max<std::size_t>(1, steps) * kColumnStep;
    // A rest of few windows goes with those before it.
    const std::size_t parts = std::max<std::size_t>(1, (windows + kColumnStep * 2 / 3) / columns);
    const std::size_t most = std::max(columns, windows - (parts - 1) * columns);
    const FilterBlocks blocks(p.filters, depth * size);
    const std::size_t matrices = p.images * p.groups;
    const std::size_t shares =
        std::min(blocks.count, Ceil(kWantedItems, matrices * parts));  // of the filters
    const std::size_t column_bytes = Ceil(most, kColumnStep) * kColumnStep * depth * size;
    RunItems(
        context, matrices * parts * shares, column_bytes + kGatherMmScratchBytes,
        [&](std::size_t item, void* scratch) {
          const std::size_t share = item % shares, part = item / shares % parts;
          const std::size_t matrix = item / shares / parts, first = part * columns;
          const std::size_t count = part + 1 == parts ? windows - first : columns;
          auto* const right = static_cast<char*>(scratch);
          pack_({p.sizes, static_cast<const char*>(input) + matrix * p.channels * p.plane() * size,
                 p.channels, first, count, right});
          for (std::size_t i = share; i < blocks.count; i += shares) {
            const std::size_t row = i * blocks.size;
            const std::size_t rows = std::min(blocks.size, p.filters - row);
            const std::size_t filter = matrix % p.groups * p.filters + row;
            const std::size_t plane = matrix * p.filters + row;
            MultiplyFilters(rows, depth, count, packed + filter * depth * size,
                            output + (plane * windows + first) * size, windows * size, right,
                            right + column_bytes);
          }
        });
  }

  void MultiplyFilters(std::size_t rows, std::size_t depth, std::size_t columns, const char* left,
                       char* output, std::size_t output_stride, const char* right,
                       void* scratch) const {
    const void* in[kGatherMmMaxRows];
    void* out[kGatherMmMaxRows];
    for (std::size_t i = 0; i < rows; ++i) {
      in[i] = left + i * depth * SizeOf(wide_);  // read if they are few
      out[i] = output + i * output_stride;
    }
    multiply_({in, left, out, right, rows, depth, columns, 0, columns}, scratch);
  }

  Checker check_;
  std::vector<std::size_t> stride_, padding_, dilation_;
  std::int64_t groups_;
  DType dtype_;
  DType wide_;
  Target target_;
  GatherMmKernel multiply_;
  ConvolutionPackKernel pack_;
  ConvolutionPlanesKernel planes_;
  WidenKernel widen_;
  NarrowKernel narrow_;
  ScratchMemory constant_;
  const void* constant_weight_ = nullptr;
  const void* constant_bias_ = nullptr;
};

}  // namespace

const OpDefinition kConvolutionOp = Define<ConvolutionOp>(names::kComposite, NoShape);

}  // namespace coreai
