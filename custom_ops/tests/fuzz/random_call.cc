#include "fuzz/random_call.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>

namespace coreai::fuzz {
namespace {

// Dims of the inputs that fit together: letters are sizes; F is half of D, W is V times H; # is an
// index; "" is rank 0.
using Layouts = std::vector<std::vector<const char*>>;
const Layouts& LayoutsOf(const std::string& op) {
  static const std::map<std::string, Layouts> all = {
      {"scaled_dot_product_attention",
       {{"B H T D", "B H S D", "B H S E", "B H T S", "H"},
        {"B W T D", "B V S D", "B V S E", "T S", "W"},
        {"B W T D", "B V S D", "B V S D", "B 1 1 S", "W"}}},
      {"gated_delta_update",
       {{"B H T D", "B H T D", "B H T E", "B H T", "B H T", "B H D E"},
        {"B V T D", "B V T D", "B W T E", "B W T", "B W T", "B W D E"}}},
      {"gather_mm",
       {{"B T D", "H D E", "#B", "#B"},
        {"B H T D", "B S D E", "#B T", "#B T"},
        {"H T D", "V D E", "#T", "#T"},
        {"T D", "V D E", "#", "#T"},
        {"T 1 D", "V E D", "#T", "#T V"}}},
      {"rope",
       {{"B H T D", "T F", "T F", "#B T", "F", "#B"},
        {"B H T D", "S F", "S F", "#B T", "F", "#"},
        {"B T D", "T D", "T D", "#T", "F", "#B 1"},
        {"B H T D", "B 1 T F", "B 1 T F", "#T", "F", "#1"}}},
      {"group_norm", {{"B W S T", "W", "W"}, {"B W", "W", "W"}, {"B W T", "W", "W"}}},
      {"kv_cache_update", {{"B H S D", "B H T D", "#B"}, {"B H S D", "B H 1 D", "#"}}},
      {"skip_rms_norm", {{"B T D", "B T D", "D"}, {"B T D", "T D", "T 1 D"}}},
      {"skip_layer_norm", {{"B T D", "B T D", "D", "D"}, {"T D", "T D", "D", "1"}}},
      {"rms_norm", {{"B T D", "D"}, {"B H T D", "H 1 D"}, {"T D", "1"}}},
      {"layer_norm", {{"B T D", "D", "D"}, {"B H T D", "H 1 D", "T D"}, {"T D", "1", "D"}}},
  };
  static const Layouts unary = {{"B T D", "B T D"}, {"T D", "T D"}, {"D", "D"}};
  const auto found = all.find(op.substr(0, op.find('.')));
  return found == all.end() ? unary : found->second;
}

template <typename E, std::size_t kCount>
E OneOf(const E (&all)[kCount], std::size_t index) {
  return all[index % kCount];
}

}  // namespace

std::int64_t RandomCall::Size(char letter) {
  std::int64_t& size = sizes_[static_cast<std::size_t>(letter)];
  if (size >= 0) return size;
  static constexpr std::int64_t kFew[] = {1, 2, 3, 1, 2, 0};
  static constexpr std::int64_t kMany[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 70, 0};
  if (letter == 'F') return size = Size('D') / 2;
  if (letter == 'W') return size = Size('V') * Size('H');
  const bool few = letter == 'B' || letter == 'H' || letter == 'V';
  size = few ? OneOf(kFew, Below(OneIn(20) ? 6 : 5)) : OneOf(kMany, Below(OneIn(20) ? 16 : 15));
  if ((letter == 'S' || letter == 'T') && OneIn(60)) size = 100 + static_cast<int>(Below(200));
  return size;
}

std::vector<std::int64_t> RandomCall::Shape(const std::string& dims) {
  std::vector<std::int64_t> shape;
  for (const char c : dims) {
    if (c == '1') shape.push_back(1);
    if (c != ' ' && c != '1' && c != '#') shape.push_back(Size(c));
  }
  if (OneIn(40) && !shape.empty()) shape.erase(shape.begin());
  if (OneIn(40)) shape.insert(shape.begin(), 1);
  if (OneIn(40) && !shape.empty()) shape[Below(shape.size())] = static_cast<int>(Below(5));
  return shape;
}

ONNXTensorElementDataType RandomCall::AnyType() {
  static constexpr ONNXTensorElementDataType kTypes[] = {
      ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,    ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
      ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
      ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
      ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE};
  return OneOf(kTypes, Below(7));
}

template <typename E>
void RandomCall::Store(OrtValue* value, std::size_t index, E element) {
  std::memcpy(value->data() + index * sizeof(E), &element, sizeof(E));
}

void RandomCall::FillNumbers(OrtValue* value) {
  const ONNXTensorElementDataType type = value->info.type;
  const std::size_t size = ElementBytes(type);
  static constexpr std::int64_t kIndices[] = {0, 1,  2,  3,        0,         1,
                                              5, -1, 40, -1000000, INT64_MAX, INT64_MIN};
  // Any bits are a number of a floating type, but most are huge, tiny or not a number.
  const bool any_bits = OneIn(8);
  const std::size_t indices = OneIn(8) ? 12 : 4;
  for (std::size_t i = 0; i < value->bytes() / size; ++i) {
    const auto small = static_cast<float>(static_cast<int>(Below(64)) - 32) / 16;
    std::uint32_t bits = 0;
    std::memcpy(&bits, &small, sizeof(bits));
    const std::int64_t index = OneOf(kIndices, Below(indices));
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64) {
      Store(value, i, index);
    } else if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32) {
      Store(value, i, static_cast<std::int32_t>(index));
    } else if (size == 1) {
      Store(value, i, static_cast<std::uint8_t>(Below(2)));
    } else if (any_bits) {
      const std::uint64_t noise = random_();
      std::memcpy(value->data() + i * size, &noise, size);
    } else if (size == 8) {
      Store(value, i, static_cast<double>(small));
    } else if (size == 4) {
      Store(value, i, small);
    } else if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16) {
      Store(value, i, static_cast<std::uint16_t>(bits >> 16));
    } else {
      Store(value, i, static_cast<std::uint16_t>((bits >> 16 & 0x8000) | (0x3000 + Below(0x0C00))));
    }
  }
}

OrtKernelInfo::Attribute RandomCall::Invent(const std::string& name) {
  static constexpr std::int64_t kInts[] = {0, 1, 1, 2, 3, 4, 8, -1, INT64_MAX, INT64_MIN};
  static constexpr float kFloats[] = {1e-5f, 1.0f,    0.5f,
                                      0.0f,  -1.0f,   std::numeric_limits<float>::infinity(),
                                      1e30f, 10000.f, std::numeric_limits<float>::quiet_NaN()};
  static const char* const kTexts[] = {"lower_right", "upper_left", "none", "tanh", "", "left"};
  if (name == "version") return OneIn(50) ? kInts[Below(10)] : std::int64_t{1};
  if (OneIn(3)) return std::monostate();
  const bool wild = OneIn(6);
  if (name == "axes") {
    std::vector<std::int64_t> axes;
    for (std::size_t i = Below(3) + 1; i-- > 0;) axes.push_back(-1 - static_cast<int>(i));
    if (wild) axes.push_back(kInts[Below(10)]);
    return axes;
  }
  static const char* const kFloatNames[] = {"eps", "scale", "softcap", "base"};
  const bool is_float = std::any_of(std::begin(kFloatNames), std::end(kFloatNames),
                                    [&](const char* known) { return name == known; });
  if (OneIn(60)) return std::string("wrong type");
  if (is_float) return kFloats[Below(wild ? 9 : 3)];
  if (name == "approximate" || name == "causal_alignment") {
    const std::size_t first = name == "approximate" ? 2 : 0;
    return std::string(kTexts[wild ? Below(6) : first + Below(2)]);
  }
  return kInts[Below(wild ? 10 : 6)];
}

void RandomCall::Fill(const OrtCustomOp& op, OrtKernelInfo* info, OrtKernelContext* context) {
  sizes_.assign(128, -1);
  info->invent = [this](const std::string& name) { return Invent(name); };
  const Layouts& layouts = LayoutsOf(op.GetName(&op));
  const auto& layout = layouts[Below(layouts.size())];
  const std::size_t count = op.GetInputTypeCount(&op);
  context->threads = 1 + Below(3);
  for (std::size_t i = 0; i < count; ++i) {
    const bool optional = op.GetInputCharacteristic(&op, i) == INPUT_OUTPUT_OPTIONAL;
    const char* dims = i < layout.size() ? layout[i] : "D";
    ONNXTensorElementDataType type = op.GetInputType(&op, i);
    // onnxruntime takes the first registration that fits, so that one with an optional input of a
    // type of its own is only taken because of that input.
    const bool decides =
        type != ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED && type != op.GetInputType(&op, 0);
    if (optional && !decides && OneIn(2)) {
      context->inputs.push_back(nullptr);
      continue;
    }
    // onnxruntime guarantees the declared types; the others may be anything.
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED) {
      type = *dims == '#' ? (OneIn(2) ? ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64
                                      : ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32)
                          : op.GetInputType(&op, 0);
      if (OneIn(4)) type = AnyType();
    }
    context->inputs.push_back(MakeValue(type, Shape(dims), Below(3)));
    FillNumbers(context->inputs.back().get());
  }
  while (!context->inputs.empty() && !context->inputs.back() && OneIn(2)) {
    context->inputs.pop_back();
  }
  for (const auto& input : context->inputs) {
    info->constants.push_back(OneIn(3) ? input.get() : nullptr);
  }
  for (std::size_t i = 0; i < op.GetOutputTypeCount(&op); ++i) {
    context->output_types.push_back(op.GetOutputType(&op, i));
    context->output_used.push_back(
        i == 0 || op.GetOutputCharacteristic(&op, i) != INPUT_OUTPUT_OPTIONAL || OneIn(2));
  }
}

}  // namespace coreai::fuzz
