#include "fuzz/expected.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "fuzz/array.h"
#include "fuzz/call.h"
#include "fuzz/expected_attention.h"
#include "fuzz/expected_collectives.h"
#include "fuzz/expected_few_bits.h"
#include "ops/schema.h"
#include "reference/add_bias.h"
#include "reference/convolution.h"
#include "reference/gated_activation.h"
#include "reference/gated_delta_update.h"
#include "reference/gather_mm.h"
#include "reference/group_norm.h"
#include "reference/layer_norm.h"
#include "reference/rms_norm.h"
#include "reference/rope.h"
#include "reference/softmax.h"

namespace coreai::fuzz {
namespace {

// scale * x + bias, both of which may be absent.
Array Affine(const Array& x, const Array& scale, const Array& bias) {
  Array y = x;
  if (scale.present) {
    const Array all = BroadcastTo(scale, x.shape);
    for (std::size_t i = 0; i < y.data.size(); ++i) y.data[i] *= all.data[i];
  }
  if (bias.present) {
    const Array all = BroadcastTo(bias, x.shape);
    for (std::size_t i = 0; i < y.data.size(); ++i) y.data[i] += all.data[i];
  }
  return y;
}

// Elements of the last axes, as many as the attribute axes lists.
std::size_t RowSize(const Call& call, const Shape& shape) {
  std::size_t axes = 1, elements = 1;
  const auto found = call.info.attributes.find("axes");
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&found->second)) {
    axes = list->size();
  }
  for (std::size_t i = shape.size() - axes; i < shape.size(); ++i) {
    elements *= static_cast<std::size_t>(shape[i]);
  }
  return elements;
}

Arrays Norm(const Call& call, const Array& x, bool centered, const Array& scale,
            const Array& bias) {
  const double eps = call.Float("eps", schema::rms_norm::kEpsDefault);
  const std::size_t row = RowSize(call, x.shape);
  Array y = x;
  y.data = centered ? testing::LayerNormReference(x.data, {}, {}, row, eps)
                    : testing::RmsNormReference(x.data, {}, row, eps);
  return {Affine(y, scale, bias)};
}

Arrays SkipNorm(const Call& call, bool centered, const Array& scale, const Array& bias) {
  Array sum = Affine(call.In(0), {}, call.In(1));
  for (double& x : sum.data) x = Rounded(x, call.type);
  Arrays outputs = Norm(call, sum, centered, scale, bias);
  outputs.push_back(sum);
  return outputs;
}

Arrays GroupNorm(const Call& call) {
  const Array& x = call.In(0);
  const auto groups =
      static_cast<std::size_t>(call.Int("num_groups", schema::group_norm::kNumGroupsDefault));
  const double eps = call.Float("eps", schema::group_norm::kEpsDefault);
  const std::size_t channels = x.count(1) / groups;
  const std::size_t size = x.data.size() / (x.count(0) * groups);
  Array y = x;
  for (std::size_t at = 0; at < x.data.size(); at += size) {
    const auto first = x.data.begin() + static_cast<std::ptrdiff_t>(at);
    const auto group = testing::GroupNormReference(
        {first, first + static_cast<std::ptrdiff_t>(size)}, {}, {}, channels, eps);
    std::copy(group.begin(), group.end(), y.data.begin() + static_cast<std::ptrdiff_t>(at));
  }
  const auto spread = [&](Array channel) {
    if (channel.present) channel.shape.resize(x.shape.size() - 1, 1);
    return channel;
  };
  return {Affine(y, spread(call.In(1)), spread(call.In(2)))};
}

Arrays AddBias(const Call& call) {
  const std::string name = call.Text("activation", "none");
  static const std::map<std::string, Activation> kActivations = {
      {"none", Activation::kNone},       {"silu", Activation::kSilu},
      {"gelu", Activation::kGelu},       {"gelu_tanh", Activation::kGeluTanh},
      {"sigmoid", Activation::kSigmoid}, {"tanh", Activation::kTanh},
      {"exp", Activation::kExp}};
  const Activation activation = kActivations.at(name);
  Array y = call.In(0);
  const Array bias = BroadcastTo(call.In(1), y.shape);
  for (std::size_t i = 0; i < y.data.size(); ++i) {
    y.data[i] = testing::AddBiasReference(activation, y.data[i], bias.data[i]);
  }
  return {y};
}

Arrays Convolution(const Call& call) {
  using Ints = std::vector<std::int64_t>;
  const Array &x = call.In(0), &weight = call.In(1);
  const Ints stride = call.Attribute<Ints>("stride", {1, 1});
  const Ints padding = call.Attribute<Ints>("padding", {0, 0, 0, 0});
  const Ints dilation = call.Attribute<Ints>("dilation", {1, 1});
  const auto groups = static_cast<std::size_t>(call.Int("groups", 1));
  const auto windows = [&](std::size_t i) {
    return (x.size(i + 2) + padding[i] + padding[i + 2] - 1 -
            (weight.size(i + 2) - 1) * dilation[i]) /
               stride[i] +
           1;
  };
  const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  const ConvolutionSizes sizes = {x.count(2),        x.count(3),       weight.count(2),
                                  weight.count(3),   size(windows(0)), size(windows(1)),
                                  size(stride[0]),   size(stride[1]),  size(dilation[0]),
                                  size(dilation[1]), size(padding[0]), size(padding[1])};
  Array y;
  y.shape = {x.size(0), weight.size(0), windows(0), windows(1)};
  const std::size_t image = x.data.size() / x.count(0);
  for (std::size_t i = 0; i < x.count(0); ++i) {
    const auto first = x.data.begin() + static_cast<std::ptrdiff_t>(i * image);
    const auto part = testing::ConvolutionReference(
        sizes, {first, first + static_cast<std::ptrdiff_t>(image)}, weight.data, call.In(2).data,
        groups, weight.count(1), weight.count(0) / groups);
    y.data.insert(y.data.end(), part.begin(), part.end());
  }
  if (call.Text("activation", "none") == "relu") {
    for (double& value : y.data) value = value <= 0 ? 0 : value;
  }
  y.present = true;
  return {y};
}

Arrays Softmax(const Call& call) {
  Array y = call.In(0);
  y.data = testing::SoftmaxReference(y.data, static_cast<std::size_t>(y.shape.back()));
  return {y};
}

Arrays Gated(const Call& call, Activation activation) {
  Array y = call.In(0);
  for (std::size_t i = 0; i < y.data.size(); ++i) {
    y.data[i] = testing::GatedActivationReference(activation, y.data[i], call.In(1).data[i]);
  }
  return {y};
}

Arrays KvCacheUpdate(const Call& call) {
  Array cache = call.In(0);
  const Array& update = call.In(1);
  const Array& position = call.In(2);
  const std::size_t heads = cache.count(1), dim = cache.count(3);
  for (std::size_t i = 0; i < update.data.size(); ++i) {
    const std::size_t row = i / dim, place = row / update.count(2);
    const double start = position.data[position.data.size() == 1 ? 0 : place / heads];
    const std::size_t to = place * cache.count(2) + row % update.count(2);
    cache.data[(to + static_cast<std::size_t>(start)) * dim + i % dim] = update.data[i];
  }
  return {cache};
}

Arrays GatherMm(const Call& call) {
  const auto axis = static_cast<std::size_t>(call.Int("num_batch_axes", 0));
  const bool turned = call.Int("transpose_rhs", 0) != 0;
  const auto taken = [&](std::size_t i) {
    return call.In(i + 2).present ? Take(call.In(i), axis, call.In(i + 2)) : call.In(i);
  };
  const Array lhs = taken(0), rhs = taken(1);
  const auto batch_of = [](const Array& x) { return Shape(x.shape.begin(), x.shape.end() - 2); };
  const Shape batch = BroadcastShape(batch_of(lhs), batch_of(rhs));
  const auto spread = [&](const Array& x) {
    Shape whole = batch;
    whole.insert(whole.end(), x.shape.end() - 2, x.shape.end());
    return BroadcastTo(x, whole);
  };
  const Array left = spread(lhs), right = spread(rhs);
  const std::size_t last = batch.size() + 1;
  const std::size_t rows = left.count(last - 1), depth = left.count(last);
  const std::size_t columns = right.count(turned ? last - 1 : last);
  Array y;
  y.shape = batch;
  y.shape.push_back(left.size(last - 1));
  y.shape.push_back(right.size(turned ? last - 1 : last));
  std::size_t matrices = 1;
  for (const std::int64_t size : batch) matrices *= static_cast<std::size_t>(size);
  for (std::size_t i = 0; i < matrices; ++i) {
    const auto part = [&](const Array& x, std::size_t size) {
      const auto first = x.data.begin() + static_cast<std::ptrdiff_t>(i * size);
      return std::vector<double>(first, first + static_cast<std::ptrdiff_t>(size));
    };
    const auto product = testing::GatherMmReference(
        part(left, rows * depth), part(right, depth * columns), rows, depth, columns, turned);
    y.data.insert(y.data.end(), product.begin(), product.end());
  }
  return {y};
}

Arrays AddLowRank(const Call& call) {
  Array y = call.In(0);
  const Array &x = call.In(1), &down = call.In(2), &up = call.In(3);
  if (y.data.empty() || x.data.empty() || down.data.empty()) return {y};
  const auto last = [](const Array& array, std::size_t from_end) {
    return array.count(array.shape.size() - from_end);
  };
  const std::size_t rows = last(y, 2), columns = last(y, 1), depth = last(x, 1);
  const std::size_t rank = last(down, 1), batches = y.data.size() / rows / columns;
  for (std::size_t i = 0; i < batches; ++i) {
    const auto part = [&](const Array& array, std::size_t size) {
      const std::size_t at = array.data.size() == size ? 0 : i * size;
      const auto first = array.data.begin() + static_cast<std::ptrdiff_t>(at);
      return std::vector<double>(first, first + static_cast<std::ptrdiff_t>(size));
    };
    const auto reduced = testing::GatherMmReference(part(x, rows * depth), part(down, depth * rank),
                                                    rows, depth, rank, false);
    const auto sums =
        testing::GatherMmReference(reduced, part(up, rank * columns), rows, rank, columns, false);
    for (std::size_t k = 0; k < sums.size(); ++k) y.data[i * sums.size() + k] += sums[k];
  }
  return {y};
}

Arrays GatedDelta(const Call& call) {
  const Array &query = call.In(0), &value = call.In(2);
  testing::GatedDeltaCase c;
  c.batch = query.count(0), c.heads = query.count(1), c.length = query.count(2);
  c.key_dim = query.count(3), c.value_heads = value.count(1), c.value_dim = value.count(3);
  c.normalize = call.Int("use_qk_l2_norm", schema::gated_delta_update::kUseQkL2NormDefault) != 0;
  c.query = query.data, c.key = call.In(1).data, c.value = value.data;
  c.log_decay = call.In(3).data, c.beta = call.In(4).data, c.initial_state = call.In(5).data;
  const testing::GatedDeltaResult result = testing::GatedDeltaReference(c);
  return {{{value.size(0), value.size(2), value.size(1), value.size(3)}, result.output, true},
          {{value.size(0), value.size(1), query.size(3), value.size(3)}, result.state, true}};
}

// Angles of every row and pair, from positions.
Array Angles(Call* call, const Shape& shape, std::size_t half) {
  const double base = call->Float("base", 10000), scale = call->Float("scale", 1);
  const Array& freqs = call->In(4);
  Array positions = call->In(3), offset = call->In(5);
  Shape rows(shape.begin(), shape.end() - 1);
  if (positions.present) {
    if (positions.shape.size() == 2 && shape.size() == 4) {
      positions.shape.insert(positions.shape.begin() + 1, 1);
    }
    positions = BroadcastTo(positions, rows);
  } else {
    positions.data.resize(BroadcastTo({{}, {0}, true}, rows).data.size());
    const std::size_t repeat = positions.data.size() / std::max<std::size_t>(1, offset.data.size());
    for (std::size_t i = 0; i < positions.data.size(); ++i) {
      const double start = offset.present ? offset.data[i / repeat] : 0;
      positions.data[i] = start + static_cast<double>(i % static_cast<std::size_t>(rows.back()));
    }
  }
  Array angles;
  for (const double position : positions.data) {
    for (std::size_t i = 0; i < half; ++i) {
      const double given = freqs.present ? freqs.data[freqs.data.size() == 1 ? 0 : i] : 0;
      const double own = std::pow(base, -static_cast<double>(i) / static_cast<double>(half));
      angles.data.push_back(position * (freqs.present ? given : own) * scale);
      // Beyond, the rounding of a float32 angle is seen.
      call->judged = call->judged && std::fabs(angles.data.back()) < 100;
    }
  }
  return angles;
}

Arrays Rope(Call* call) {
  const Array& x = call->In(0);
  const std::int64_t dims = call->Int("dims", 0), lanes = x.shape.back();
  const std::int64_t rotated = 0 < dims && dims < lanes ? dims : lanes;
  const auto half = static_cast<std::size_t>(rotated / 2);
  if (half == 0 || x.data.empty()) return {x};
  std::vector<double> cos, sin;
  if (call->In(1).present && call->In(2).present) {
    Shape pairs = x.shape;
    pairs.back() = rotated / 2;
    cos = BroadcastTo(call->In(1), pairs).data;
    sin = BroadcastTo(call->In(2), pairs).data;
  } else {
    for (const double angle : Angles(call, x.shape, half).data) {
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
  }
  Array y = x;
  y.data = testing::RopeReference(x.data, cos, sin, static_cast<std::size_t>(lanes), half,
                                  call->Int("interleaved", 0) != 0);
  return {y};
}

Arrays Compute(const std::string& op, Call* call, const OrtKernelContext& context) {
  if (op == "rms_norm") return Norm(*call, call->In(0), false, call->In(1), {});
  if (op == "layer_norm") return Norm(*call, call->In(0), true, call->In(1), call->In(2));
  if (op == "skip_rms_norm") return SkipNorm(*call, false, call->In(2), {});
  if (op == "skip_layer_norm") return SkipNorm(*call, true, call->In(2), call->In(3));
  if (op == "group_norm") return GroupNorm(*call);
  if (op == "add_bias") return AddBias(*call);
  if (op == "add_low_rank") return AddLowRank(*call);
  if (op == "convolution") return Convolution(*call);
  if (op == "softmax") return Softmax(*call);
  if (op == "all_reduce") return AllReduce(*call);
  if (op == "all_gather") return AllGather(*call);
  if (op == "swiglu") return Gated(*call, Activation::kSilu);
  if (op == "geglu") {
    const bool tanh = call->Text("approximate", "none") == "tanh";
    return Gated(*call, tanh ? Activation::kGeluTanh : Activation::kGelu);
  }
  if (op == "kv_cache_update") return KvCacheUpdate(*call);
  if (op == "gather_mm") return GatherMm(*call);
  if (op == "gather_mm_nbits") return GatherMmNbits(*call);
  if (op == "linear_nbits") return LinearNbits(*call);
  if (op == "gated_delta_update") return GatedDelta(*call);
  if (op == "rope") return Rope(call);
  return AnyAttention(op, *call, context);
}

double Largest(const Arrays& arrays) {
  double largest = 1;
  for (const Array& array : arrays) {
    for (const double x : array.data) {
      if (std::isnan(x)) return HUGE_VAL;
      largest = std::max(largest, std::fabs(x));
    }
  }
  return largest;
}

// Whether the result is much the same where every number of the inputs is off by a few roundings.
bool IsWellConditioned(const std::string& op, Call call, const OrtKernelContext& context,
                       const Arrays& wanted, double allowed) {
  constexpr double kRoundings = 1e-6;
  std::size_t places = 0;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    if (context.inputs[i] == nullptr || !IsFloating(context.inputs[i]->info.type)) continue;
    for (double& x : call.inputs[i].data) {
      x *= 1 + (++places * 2654435761U % 512 < 256 ? kRoundings : -kRoundings);
    }
  }
  const Arrays other = Compute(op, &call, context);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    for (std::size_t at = 0; at < wanted[i].data.size(); ++at) {
      if (!(std::fabs(other[i].data[at] - wanted[i].data[at]) < allowed / 4)) return false;
    }
  }
  return true;
}

std::string Difference(const OrtKernelContext& context, const Arrays& wanted, double allowed) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const OrtValue* output = i < context.outputs.size() ? context.outputs[i].get() : nullptr;
    if (output == nullptr) continue;
    const Array got = ReadArray(output);
    if (got.shape != wanted[i].shape) return "output " + std::to_string(i) + " has another shape";
    for (std::size_t at = 0; at < got.data.size(); ++at) {
      if (std::fabs(got.data[at] - wanted[i].data[at]) <= allowed) continue;
      return "element " + std::to_string(at) + " of output " + std::to_string(i) + " is " +
             std::to_string(got.data[at]) + ", expected " + std::to_string(wanted[i].data[at]);
    }
  }
  return "";
}

bool IsSmall(const std::vector<std::shared_ptr<OrtValue>>& values) {
  return std::all_of(values.begin(), values.end(), [](const auto& value) {
    return value == nullptr || value->bytes() <= 4096 * ElementBytes(value->info.type);
  });
}

}  // namespace

std::string WrongOutputs(const std::string& op, const OrtKernelInfo& info,
                         const OrtKernelContext& context, bool* judged) {
  *judged = false;
  if (!IsSmall(context.inputs) || !IsSmall(context.outputs)) return "";
  if (context.outputs.at(0)->bytes() == 0) return "";
  Call call{info, context.output_types[0], {}};
  for (const auto& input : context.inputs) call.inputs.push_back(ReadArray(input.get()));
  const Arrays wanted = Compute(op, &call, context);
  const double largest = Largest(wanted);
  const double allowed = Tolerance(call.type) * largest;
  if (!call.judged || largest > 1e4) return "";
  if (!IsWellConditioned(op, call, context, wanted, allowed)) return "";
  *judged = true;
  return Difference(context, wanted, allowed);
}

}  // namespace coreai::fuzz
