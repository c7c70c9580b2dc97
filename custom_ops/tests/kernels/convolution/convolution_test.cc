#include "kernels/convolution/convolution.h"

#include <cstdlib>

#include "kernels/gather_mm/gather_mm.h"
#include "reference/convolution.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

ConvolutionSizes SizesOf(std::size_t height, std::size_t width, std::size_t window,
                         std::size_t stride, std::size_t dilation, std::size_t padding) {
  const auto count = [&](std::size_t size) {
    return (size + 2 * padding - (window - 1) * dilation - 1) / stride + 1;
  };
  return {height, width,  window,   window,   count(height), count(width),
          stride, stride, dilation, dilation, padding,       padding};
}

// Sizes, strides, dilations and paddings of many kinds.
std::vector<ConvolutionSizes> AllSizes() {
  std::vector<ConvolutionSizes> all = {SizesOf(1, 1, 1, 1, 1, 0),
                                       SizesOf(2, 2, 3, 1, 1, 4),
                                       SizesOf(40, 37, 3, 1, 1, 1),
                                       SizesOf(9, 300, 2, 1, 5, 3),
                                       // Padding below, then on the right, alone.
                                       {6, 39, 3, 3, 5, 37, 1, 1, 1, 1, 0, 0},
                                       {1, 39, 1, 3, 1, 39, 1, 1, 1, 1, 0, 0}};
  for (std::size_t width = 3; width < 40; width += 3) {
    for (std::size_t window = 1; window <= 3; ++window) {
      for (std::size_t stride = 1; stride <= 2; ++stride) {
        all.push_back(SizesOf(5, width, window, stride, 1 + width % 2 * (window < 3), window / 2));
      }
    }
  }
  return all;
}

const DType kWide[] = {DType::kFloat32, DType::kFloat64};

TEST(Convolution, ColumnsAreWindowsAndAOne) {
  constexpr std::size_t kChannels = 3;
  for (const ConvolutionSizes& s : AllSizes()) {
    for (const DType dtype : kWide) {
      const Tensor image(dtype, Normal(kChannels * s.height * s.width, 1), 1);
      const std::size_t first = s.windows() > 48 ? 48 : 0;
      const std::size_t count = std::min<std::size_t>(s.windows() - first, 100);
      const std::size_t depth = s.window_size() * kChannels + 1;
      // The columns times rows of the unit matrix are their elements.
      for (const Target target : SupportedTargets()) {
        const Tensor packed(dtype, GatherMmPackedColumns(count) * depth);
        FindConvolutionPack(target,
                            dtype)({s, image.data(), kChannels, first, count, packed.data()});
        const Tensor scratch(dtype, kGatherMmScratchBytes / SizeOf(dtype));
        for (std::size_t k = 0; k < depth; ++k) {
          std::vector<double> unit(depth, 0.0);
          unit[k] = 1;
          const Tensor row(dtype, unit), y(dtype, count);
          const void* in = row.data();
          void* out = y.data();
          FindGatherMm(target, dtype, GatherMmLayout::kPacked)(
              {&in, nullptr, &out, packed.data(), 1, depth, count, 0, count}, scratch.data());
          // A filter with a one at that element of a window.
          std::vector<double> filter(depth - 1, 0.0);
          const std::size_t place = k / kChannels, c = k % kChannels;
          if (k + 1 < depth) filter[c * s.window_size() + place] = 1;
          const std::vector<double> bias = {k + 1 < depth ? 0.0 : 1.0};
          const auto all = ConvolutionReference(s, image.Values(), filter, bias, 1, kChannels, 1);
          const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
          ExpectNear(y, {begin, begin + static_cast<std::ptrdiff_t>(count)}, dtype);
        }
      }
    }
  }
}

// Filters for all windows, or for a row or part of a row at a time.
Tensor Filters(Target target, DType dtype, const ConvolutionSizes& s, const Tensor& image,
               const Tensor& packed, const void* bias, std::size_t channels, std::size_t filters,
               std::size_t at_once) {
  Tensor y(dtype, filters * s.windows(), 1);
  const std::size_t bytes = ConvolutionFiltersScratch(s, channels, at_once, dtype);
  const Tensor scratch(dtype, bytes / SizeOf(dtype));
  for (std::size_t first = 0; first < s.windows();) {
    const std::size_t in_row = s.out_width - first % s.out_width;
    const std::size_t count = at_once == s.windows() ? at_once : std::min(at_once, in_row);
    for (std::size_t filter = 0; filter < filters; filter += kConvolutionPanelStep) {
      const std::size_t end = std::min(filters, filter + kConvolutionPanelStep);
      FindConvolutionFilters(target, dtype)({s, image.data(), channels, first, count, packed.data(),
                                             bias, filters, filter, end, y.data(), nullptr, false},
                                            scratch.data());
    }
    first += count;
  }
  return y;
}

TEST(Convolution, FiltersOnEveryTarget) {
  for (const ConvolutionSizes& s : AllSizes()) {
    const std::size_t filters = 17 + s.width, channels = s.width == 12 ? 20 : 3;
    const std::size_t depth = channels * s.window_size();
    for (const DType dtype : kWide) {
      const Tensor image(dtype, Normal(channels * s.height * s.width, 2), 1);
      const Tensor weight(dtype, Normal(filters * depth, 3), 2);
      const Tensor bias(dtype, Normal(filters, 4), 3);
      for (const bool biased : {false, true}) {
        const auto want = ConvolutionReference(s, image.Values(), weight.Values(),
                                               biased ? bias.Values() : std::vector<double>(), 1,
                                               channels, filters);
        for (const Target target : SupportedTargets()) {
          SCOPED_TRACE(::testing::Message()
                       << TargetName(target) << ' ' << Name(dtype) << ' ' << s.height << 'x'
                       << s.width << " window " << s.window_width << " stride " << s.stride_x);
          const Tensor packed(dtype, GatherMmPackedColumns(filters) * depth);
          FindConvolutionPackFilters(target, dtype)(weight.data(), depth, filters, packed.data());
          const auto run = [&](std::size_t at_once) {
            return Filters(target, dtype, s, image, packed, biased ? bias.data() : nullptr,
                           channels, filters, at_once);
          };
          const Tensor whole = run(s.windows());
          ExpectNear(whole, want, dtype);
          EXPECT_EQ(run(s.out_width).Values(), whole.Values());
          EXPECT_EQ(run(5).Values(), whole.Values());
        }
      }
    }
  }
}

TEST(Convolution, PlanesOnEveryTarget) {
  constexpr std::size_t kPlanes = 2, kMultiple = 2, kFilters = kPlanes * kMultiple;
  for (const ConvolutionSizes& s : AllSizes()) {
    for (const DType dtype : kWide) {
      const Tensor image(dtype, Normal(kPlanes * s.height * s.width, 2), 1);
      const Tensor weight(dtype, Normal(kFilters * s.window_size(), 3), 2);
      const Tensor bias(dtype, Normal(kFilters, 4), 3);
      for (const bool biased : {false, true}) {
        const auto want = ConvolutionReference(s, image.Values(), weight.Values(),
                                               biased ? bias.Values() : std::vector<double>(),
                                               kPlanes, 1, kMultiple);
        for (const Target target : SupportedTargets()) {
          SCOPED_TRACE(::testing::Message()
                       << TargetName(target) << ' ' << Name(dtype) << ' ' << s.height << 'x'
                       << s.width << " window " << s.window_width << " stride " << s.stride_x);
          const Tensor y(dtype, kFilters * s.windows(), 1);
          const Tensor scratch(dtype, ConvolutionPlanesScratch(s) / SizeOf(dtype));
          FindConvolutionPlanes(target, dtype)(
              {s, image.data(), weight.data(), biased ? bias.data() : nullptr, y.data(), kFilters,
               kMultiple},
              scratch.data());
          ExpectNear(y, want, dtype);
        }
      }
    }
  }
}

TEST(Convolution, FinishAddsAndActivates) {
  for (const DType dtype : kWide) {
    Tensor x(dtype, Normal(37, 5), 1);
    const Tensor residual(dtype, Normal(37, 6), 2);
    x.Set(3, NAN);
    x.Set(20, -residual[20]);
    for (const Target target : SupportedTargets()) {
      for (const bool relu : {false, true}) {
        for (const bool added : {false, true}) {
          const Tensor y(dtype, x.Values(), 3);
          FindConvolutionFinish(target,
                                dtype)({added ? residual.data() : nullptr, relu, 37, y.data()});
          std::vector<double> want = x.Values();
          for (std::size_t i = 0; i < 37; ++i) {
            want[i] += added ? residual[i] : 0;
            if (relu && want[i] <= 0) want[i] = 0;
          }
          ExpectNear(y, want, dtype);
        }
      }
    }
  }
}

TEST(Convolution, NarrowRounds) {
  for (const DType dtype : AllDTypes()) {
    const DType wide = WideDType(dtype);
    const Tensor x(wide, Normal(37, 5), 1);
    for (const Target target : SupportedTargets()) {
      const Tensor y(dtype, 37, 1);
      FindNarrow(target, dtype)(x.data(), 37, y.data());
      for (std::size_t i = 0; i < 37; ++i) EXPECT_EQ(y[i], Quantize(x[i], dtype));
    }
  }
}

}  // namespace
}  // namespace coreai::testing
