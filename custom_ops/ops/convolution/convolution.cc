#include "kernels/convolution/convolution.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gather_mm/gather_mm.h"
#include "kernels/gather_mm/widen.h"
#include "ops/checks.h"
#include "ops/convolution/convolution_filters.h"
#include "ops/item_pool.h"
#include "ops/op_list.h"
#include "ops/row_split.h"
#include "ops/widened.h"

namespace coreai {
namespace {

namespace names = schema::convolution;
static_assert(names::kInputCount == 4 && names::kAttributeCount == 5, "the declaration changed");

// Bytes of the windows of an item, packed or in padded planes, which stay in the second-level
// cache.
constexpr std::size_t kColumnBytes = 512 * 1024;
// The number of windows of an item, whose sums stay there too.
constexpr std::size_t kItemWindows = 1024;
// The number of items of a call for which windows, then filters, are divided.
constexpr std::size_t kWantedItems = 8;
// Padded planes have a size that fits into 32 bits.
constexpr std::int64_t kLargestPlane = std::int64_t{1} << 30;
// The number of multiply-adds that is worth a thread, as in gather_mm.
constexpr std::size_t kProductsPerItem = 256 * 1024;

class ConvolutionOp : public Op {
 public:
  ConvolutionOp(const KernelInfo& info, DType dtype, Target target)
      : check_(info.op()),
        stride_(Read(info, names::kStride, 2, 1)),
        padding_(Read(info, names::kPadding, 4, 0)),
        dilation_(Read(info, names::kDilation, 2, 1)),
        groups_(info.Int(names::kGroups, names::kGroupsDefault)),
        relu_(ReadsRelu(info)),
        dtype_(dtype),
        wide_(WideDType(dtype)),
        target_(target),
        multiply_(FindGatherMm(target, wide_, GatherMmLayout::kPacked)),
        pack_(FindConvolutionPack(target, wide_)),
        filters_(FindConvolutionFilters(target, wide_)),
        finish_(FindConvolutionFinish(target, wide_)),
        planes_(FindConvolutionPlanes(target, wide_)),
        widen_(FindWiden(target, dtype)),
        narrow_(FindNarrow(target, dtype)) {
    if (groups_ < 1) check_.Fail("attribute groups is " + std::to_string(groups_));
    const TensorView weight = info.Constant(names::kWeightInput);
    const TensorView bias = info.Constant(names::kBiasInput);
    if (!weight || weight.type != OnnxType(wide_) || weight.shape.size() != 4) return;
    const ConvolutionProblem problem = OfWeight(weight.shape);
    const bool biased = bias && bias.type == OnnxType(wide_) && bias.shape == BiasShape(weight);
    if ((bias && !biased) || weight.shape[0] % groups_ != 0 || problem.of_planes()) return;
    if (ElementCount(weight.shape) == 0) return;
    constant_weight_ = weight.data;
    constant_bias_ = bias.data;
    constant_ = PackFilters(problem, weight.data, bias.data, wide_, target_);
  }

  void Compute(const KernelContext& context) const override {
    const TensorView input = context.Input(names::kInputInput);
    const TensorView weight = context.Input(names::kWeightInput);
    const TensorView bias = context.Input(names::kBiasInput);
    check_.Require("input", input, dtype_);
    check_.Require("weight", weight, dtype_);
    if (bias) check_.Require("bias", bias, dtype_);
    const ConvolutionProblem problem = Checked(input, weight, bias);
    const auto windows = [&](std::size_t n) { return static_cast<std::int64_t>(n); };
    const Shape shape = {input.shape[0], weight.shape[0], windows(problem.sizes.out_height),
                         windows(problem.sizes.out_width)};
    const TensorView residual = context.Input(names::kResidualInput);
    if (residual) check_.Require("residual", residual, dtype_);
    if (residual && residual.shape != shape) {
      check_.Fail("input residual of shape " + ToString(residual.shape) +
                  " must have the shape of the result, " + ToString(shape));
    }
    auto* const output = static_cast<char*>(context.Output(0, shape));
    const std::size_t elements = ElementCount(shape);
    if (elements == 0) return;
    const Widened addend = residual ? Widened(residual, dtype_) : Widened();
    ConvolutionFinish finish = {addend.data(), relu_, elements, output};
    if (dtype_ == wide_) return Run(context, problem, input.data, weight, bias, finish);
    const std::size_t count = ElementCount(input.shape);
    const ScratchMemory wide = AllocateScratch(count * SizeOf(wide_));
    const ScratchMemory result = AllocateScratch(elements * SizeOf(wide_));
    Convert(context, widen_, input.data, SizeOf(dtype_), count, wide.get(), SizeOf(wide_));
    finish.output = result.get();
    Run(context, problem, wide.get(), weight, bias, finish);
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

  bool ReadsRelu(const KernelInfo& info) const {
    const std::string name = info.String(names::kActivation, names::kActivationDefault);
    if (name != "none" && name != "relu") {
      check_.Fail("attribute activation is \"" + name + "\", expected \"none\" or \"relu\"");
    }
    return name == "relu";
  }

  static Shape BiasShape(const TensorView& weight) { return {weight.shape[0]}; }

  ConvolutionProblem OfWeight(const Shape& weight) const {
    const auto size = [&](std::size_t axis) { return static_cast<std::size_t>(weight[axis]); };
    ConvolutionProblem problem = {};
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

  ConvolutionProblem Checked(const TensorView& input, const TensorView& weight,
                             const TensorView& bias) const {
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
    ConvolutionProblem problem = OfWeight(w);
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

  void Run(const KernelContext& context, ConvolutionProblem problem, const void* input,
           const TensorView& weight, const TensorView& bias,
           const ConvolutionFinish& finish) const {
    auto* const output = static_cast<char*>(finish.output);
    if (problem.of_points()) {  // as one row, so that tiles do not end with those of the plane
      problem.sizes.width = problem.sizes.out_width = problem.plane();
      problem.sizes.height = problem.sizes.out_height = 1;
    }
    const Widened filters(weight, dtype_);
    const Widened biases = bias ? Widened(bias, dtype_) : Widened();
    if (problem.of_planes()) {
      RunPlanes(context, problem, input, filters.data(), biases.data(), output);
      return FinishAll(context, finish);
    }
    ScratchMemory packed_now;
    const char* packed = nullptr;
    if (constant_weight_ != nullptr && weight.data == constant_weight_ &&
        bias.data == constant_bias_) {
      packed = constant_.get();
    } else {
      packed_now = PackFilters(problem, filters.data(), biases.data(), wide_, target_);
      packed = packed_now.get();
    }
    if (problem.of_filters()) {
      return RunFilters(context, problem, input, packed, biases.data(), finish);
    }
    RunProducts(context, problem, input, packed, output);
    FinishAll(context, finish);
  }

  void FinishAll(const KernelContext& context, const ConvolutionFinish& all) const {
    if (all.residual == nullptr && !all.relu) return;
    SplitRows(context, all.count, 1, all.count, [&](std::size_t first, std::size_t count) {
      finish_({At(all.residual, first), all.relu, count,
               static_cast<char*>(all.output) + first * SizeOf(wide_)});
    });
  }

  /// The element of an array, which may be absent.
  const void* At(const void* data, std::size_t index) const {
    return data == nullptr ? nullptr : static_cast<const char*>(data) + index * SizeOf(wide_);
  }

  void RunPlanes(const KernelContext& context, const ConvolutionProblem& p, const void* input,
                 const void* weight, const void* bias, char* output) const {
    const std::size_t size = SizeOf(wide_), windows = p.sizes.windows();
    // The filters of an item fill the lanes of vectors.
    const std::size_t wanted = kProductsPerItem / (windows * p.sizes.window_size());
    const std::size_t per_item =
        Ceil(Ceil(wanted + 1, kConvolutionFilterStep) * kConvolutionFilterStep, p.filters);
    const std::size_t items = Ceil(p.groups, per_item);
    RunItems(context, p.images * items, ConvolutionPlanesScratch(p.sizes),
             [&](std::size_t item, void* scratch) {
               const std::size_t image = item / items, group = item % items * per_item;
               const std::size_t groups = std::min(per_item, p.groups - group);
               const std::size_t first = group * p.filters;
               planes_({p.sizes, At(input, (image * p.groups + group) * p.plane()),
                        At(weight, first * p.sizes.window_size()), At(bias, first),
                        output + (image * p.groups * p.filters + first) * windows * size,
                        groups * p.filters, p.filters},
                       scratch);
             });
  }

  void RunProducts(const KernelContext& context, const ConvolutionProblem& p, const void* input,
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

  void RunFilters(const KernelContext& context, const ConvolutionProblem& p, const void* input,
                  const char* packed, const void* bias, const ConvolutionFinish& finish) const {
    const std::size_t size = SizeOf(wide_), windows = p.sizes.windows();
    auto* const output = static_cast<char*>(finish.output);
    const ConvolutionParts parts(p, kColumnBytes, kItemWindows, wide_);
    const std::size_t matrices = p.images * p.groups;
    const std::size_t panels = Ceil(p.filters, kConvolutionPanelStep);
    const std::size_t shares = std::min(panels, Ceil(kWantedItems, matrices * parts.count()));
    const std::size_t matrix_bytes = GatherMmPackedBytes(target_, wide_, p.depth(), p.filters);
    RunItems(context, matrices * parts.count() * shares, parts.scratch_bytes(),
             [&](std::size_t item, void* scratch) {
               const std::size_t share = item % shares, part = item / shares % parts.count();
               const std::size_t matrix = item / shares / parts.count(), group = matrix % p.groups;
               const auto panel = [&](std::size_t i) {
                 return std::min(i * panels / shares * kConvolutionPanelStep, p.filters);
               };
               const std::size_t plane = matrix * p.filters * windows;
               filters_({p.sizes, At(input, matrix * p.channels * p.plane()), p.channels,
                         parts.First(part), parts.Count(part), packed + group * matrix_bytes,
                         At(bias, group * p.filters), p.filters, panel(share), panel(share + 1),
                         output + plane * size, At(finish.residual, plane), finish.relu},
                        scratch);
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
  bool relu_;
  DType dtype_;
  DType wide_;
  Target target_;
  GatherMmKernel multiply_;
  ConvolutionPackKernel pack_;
  ConvolutionFiltersKernel filters_;
  ConvolutionFinishKernel finish_;
  ConvolutionPlanesKernel planes_;
  WidenKernel widen_;
  NarrowKernel narrow_;
  ScratchMemory constant_;  // packed
  const void* constant_weight_ = nullptr;
  const void* constant_bias_ = nullptr;
};

}  // namespace

const OpDefinition kConvolutionOp = Define<ConvolutionOp>(names::kComposite, NoShape);

}  // namespace coreai
