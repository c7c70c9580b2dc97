#include "fuzz/random_call.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "fuzz/layouts.h"

namespace coreai::fuzz {
namespace {

template <typename E, std::size_t kCount>
E OneOf(const E (&all)[kCount], std::size_t index) {
  return all[index % kCount];
}

// Sizes may be huge beside a 0.
std::int64_t Product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

}  // namespace

// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
std::uint64_t RandomCall::Random::operator()() {
  std::uint64_t z = state += 0x9E3779B97F4A7C15;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
  z = (z ^ z >> 27) * 0x94D049BB133111EB;
  return z ^ z >> 31;
}

std::int64_t RandomCall::Size(char letter) {
  std::int64_t& size = sizes_[static_cast<std::size_t>(letter)];
  if (size >= 0) return size;
  static constexpr std::int64_t kFew[] = {1, 2, 3, 1, 2, 0};
  static constexpr std::int64_t kMany[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 70};
  if (letter == 'Q') return size = 16;
  if (letter == 'X') return size = 64;
  if (letter == 'Y') return size = Product(Size('L'), 256);
  if (letter == 'P') return size = std::int64_t{1} << ints_["bits"];
  if (letter == 'R') return size = Product(Size('K'), ints_["group_size"]);
  if (letter == 'U') return size = Product(Size('M'), ints_["group_size"]);
  if (letter == 'G') return size = Product(Size('F'), 2);
  if (letter == 'M') return size = Product(Size('L'), 2);
  if (letter == 'Z') return size = Product(Size('A'), 4);
  if (letter == 'W') {
    const std::int64_t each = Size('H');  // not as an argument: those have no order
    return size = Product(Size('V'), each);
  }
  if (large_.find(letter) != std::string::npos) return size = 71 + static_cast<int>(Below(450));
  const bool few = letter == 'B' || letter == 'H' || letter == 'V';
  if (few && !large_.empty()) return size = 1 + static_cast<int>(Below(2));
  if (few) return size = OneOf(kFew, Below(OneIn(20) ? 6 : 5));
  return size = OneIn(300) ? 0 : OneOf(kMany, Below(OneIn(4) ? 15 : 13));
}

// Beside a size of 0 any other is possible, and must not be counted, looped over or allocated.
std::int64_t RandomCall::HugeSize() {
  static constexpr std::int64_t kHuge[] = {1LL << 31, 1LL << 33, 1LL << 40, 1LL << 61, INT64_MAX};
  return OneOf(kHuge, Below(5));
}

std::vector<std::int64_t> RandomCall::Shape(const std::string& dims) {
  std::vector<std::int64_t> shape;
  for (const char c : dims) {
    if (c >= '1' && c <= '9') shape.push_back(c - '0');
    if (c >= 'A' && c <= 'Z') shape.push_back(Size(c));
  }
  if (OneIn(40) && !shape.empty()) shape.erase(shape.begin());
  if (OneIn(40)) shape.insert(shape.begin(), 1);
  if (OneIn(40) && !shape.empty()) shape[Below(shape.size())] = static_cast<int>(Below(5));
  if (OneIn(60)) {
    shape.resize(Below(10));
    for (std::int64_t& size : shape) size = static_cast<int>(Below(4));
  }
  for (std::size_t i = 0; !FitsMemory(shape); i = (i + 1) % shape.size()) {
    shape[i] = std::min(shape[i], static_cast<std::int64_t>(1 + Below(5)));
  }
  return shape;
}

ONNXTensorElementDataType RandomCall::AnyType() {
  static constexpr ONNXTensorElementDataType kTypes[] = {
      ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,    ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
      ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
      ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
      ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,   ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8};
  return OneOf(kTypes, Below(8));
}

template <typename E>
void RandomCall::Store(OrtValue* value, std::size_t index, E element) {
  std::memcpy(value->data() + index * sizeof(E), &element, sizeof(E));
}

void RandomCall::FillIndices(OrtValue* value) {
  static constexpr std::int64_t kWild[] = {0, 1, 2, 3, 5, -1, 40, -1000000, INT64_MAX, INT64_MIN};
  const bool wild = OneIn(16);
  const std::size_t size = ElementBytes(value->info.type);
  for (std::size_t i = 0; i < value->bytes() / size; ++i) {
    const std::int64_t index =
        wild ? OneOf(kWild, Below(10)) : static_cast<std::int64_t>(Below(index_limit_));
    if (size == 8) {
      Store(value, i, index);
    } else {
      Store(value, i, static_cast<std::int32_t>(index));
    }
  }
}

// Numbers of a field of up to 3 bits among 40: factors and rows below 9.
void RandomCall::FillLayout(OrtValue* value) {
  static constexpr std::int32_t kWild[] = {-1, 0, 9, 10, 38, 40, 1000000, INT32_MAX, INT32_MIN};
  const bool wild = OneIn(8);
  for (std::size_t i = 0; i < value->bytes() / sizeof(std::int32_t); ++i) {
    const std::uint64_t mosts[] = {2, 38, 3, 2};
    const auto number = static_cast<std::int32_t>(Below(mosts[i % 4]) + (i % 4 == 2 ? 1 : 0));
    Store(value, i, wild && OneIn(8) ? OneOf(kWild, Below(9)) : number);
  }
}

// Bits of a floating type: numbers of everyday size, else of `kind` 0 any bits, most of which are
// huge, tiny or not a number, and of `kind` 1 the ends of the range.
std::uint64_t RandomCall::FloatBits(ONNXTensorElementDataType type, std::size_t kind) {
  static constexpr double kEnds[] = {0.0, -0.0, 1e4, -1e4, 3e38, -3e38, 1e-40, HUGE_VAL, -HUGE_VAL};
  if (kind == 0) return random_();
  const double small = fine_ ? static_cast<double>(random_() >> 11) * 0x1p-51 - 2
                             : static_cast<double>(static_cast<int>(Below(64)) - 32) / 16;
  const double number = kind == 1 ? (OneIn(12) ? std::nan("") : OneOf(kEnds, Below(9))) : small;
  const auto narrow = static_cast<float>(number);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &number, sizeof(number));
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE) return bits;
  std::uint32_t narrow_bits = 0;
  std::memcpy(&narrow_bits, &narrow, sizeof(narrow));
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) return narrow_bits;
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16) return narrow_bits >> 16;
  const std::uint32_t sign = narrow_bits >> 16 & 0x8000;
  if (kind != 1) return sign | (0x3000 + Below(0x0C00));
  return sign | OneOf({0u, 1u, 0x3ffu, 0x7bffu, 0x7c00u, 0x7e00u, 0x70e2u}, Below(7));
}

void RandomCall::FillNumbers(OrtValue* value) {
  const ONNXTensorElementDataType type = value->info.type;
  const std::size_t size = ElementBytes(type);
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 || type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32) {
    return FillIndices(value);
  }
  const std::size_t kind = Below(24);
  if (kind < 2) tame_ = false;
  // Large tensors are made of a few numbers, which takes a tenth of the time.
  const std::size_t count = value->bytes() / size;
  std::vector<std::uint64_t> numbers(std::min<std::size_t>(count, 64));
  const std::size_t most = type == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 ? 256 : 2;
  for (std::uint64_t& bits : numbers) bits = size == 1 ? Below(most) : FloatBits(type, kind);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = numbers[i < numbers.size() ? i : random_() % 64];
    if (size == 8) {
      Store(value, i, bits);
    } else if (size == 4) {
      Store(value, i, static_cast<std::uint32_t>(bits));
    } else if (size == 2) {
      Store(value, i, static_cast<std::uint16_t>(bits));
    } else {
      Store(value, i, static_cast<std::uint8_t>(bits));
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
  const auto wanted = ints_.find(name);
  if (wanted != ints_.end() && !OneIn(6)) return wanted->second;
  if (OneIn(3)) return std::monostate();
  const bool wild = OneIn(6);
  if (name == "axes") {
    std::vector<std::int64_t> axes;
    for (std::size_t i = Below(3) + 1; i-- > 0;) axes.push_back(-1 - static_cast<int>(i));
    if (wild) axes.push_back(kInts[Below(10)]);
    return axes;
  }
  if (name == "stride" || name == "dilation" || name == "padding") {
    const bool pads = name == "padding";
    std::vector<std::int64_t> numbers(pads ? 4 : 2);
    for (std::int64_t& number : numbers) number = (pads ? 0 : 1) + static_cast<int>(Below(3));
    if (wild) numbers[Below(numbers.size())] = kInts[Below(10)];
    if (OneIn(40)) numbers.pop_back();
    return numbers;
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
  if (name == "activation") {
    // The first two are those of convolutions.
    static const char* const kActivations[] = {"none",      "relu", "silu",    "gelu",
                                               "gelu_tanh", "tanh", "sigmoid", "exp"};
    return std::string(wild ? kTexts[Below(6)] : kActivations[Below(OneIn(2) ? 2 : 8)]);
  }
  return kInts[Below(wild ? 10 : 6)];
}

void RandomCall::ForgetSizes() {
  sizes_.assign(128, -1);
  tame_ = true;
  // Kernels work in blocks of up to 384; most calls are small, so that there can be many.
  static constexpr char kLarge[] = "STDEF";
  large_.clear();
  if (OneIn(20)) large_ += kLarge[Below(5)];
  if (OneIn(60)) large_ += kLarge[Below(5)];
  index_limit_ = 1 + Below(3);
}

void RandomCall::Fill(const OrtCustomOp& op, OrtKernelInfo* info, OrtKernelContext* context) {
  ForgetSizes();
  // By name: kernels ask for attributes in the order in which a compiler evaluates arguments.
  info->invent = [this, seed = random_()](const std::string& name) {
    Random named{seed};
    for (const char c : name) named.state ^= named() ^ static_cast<unsigned char>(c);
    const Random before = std::exchange(random_, named);
    OrtKernelInfo::Attribute invented = Invent(name);
    random_ = before;
    return invented;
  };
  const Layouts& layouts = LayoutsOf(op.GetName(&op));
  const Layout& layout = layouts[Below(layouts.size())];
  ints_ = layout.ints;
  if (OneIn(50)) {
    static constexpr char kLetters[] = "BHVSTDEF";
    sizes_[static_cast<std::size_t>(kLetters[Below(8)])] = HugeSize();
    sizes_[static_cast<std::size_t>(kLetters[Below(8)])] = 0;
  }
  const std::size_t count = op.GetInputTypeCount(&op);
  context->threads = 1 + Below(3);
  for (std::size_t i = 0; i < count; ++i) {
    const bool optional = op.GetInputCharacteristic(&op, i) == INPUT_OUTPUT_OPTIONAL;
    const char* dims = i < layout.inputs.size() ? layout.inputs[i] : "D";
    const bool absent = dims == nullptr && !OneIn(40);
    if (dims == nullptr) dims = "D";
    const bool needed = *dims == '!' && !OneIn(40);
    if (*dims == '!') ++dims;
    ONNXTensorElementDataType type = op.GetInputType(&op, i);
    // onnxruntime takes the first registration that fits, so that one with an optional input of a
    // type of its own is only taken because of that input.
    const bool decides =
        type != ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED && type != op.GetInputType(&op, 0);
    if (optional && !decides && !needed && (absent || OneIn(2))) {
      context->inputs.push_back(nullptr);
      continue;
    }
    // onnxruntime guarantees the declared types; the others may be anything.
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED) {
      type = *dims == '#'   ? (OneIn(2) ? ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64
                                        : ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32)
             : *dims == '%' ? ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8
             : *dims == '@' ? ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32
                            : op.GetInputType(&op, 0);
      if (OneIn(*dims == '%' || *dims == '@' ? 40 : 4)) type = AnyType();
    }
    const std::size_t shift = Below(3);
    context->inputs.push_back(MakeValue(type, Shape(dims), shift));
    OrtValue* const value = context->inputs.back().get();
    if (*dims == '@' && type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32) {
      FillLayout(value);
    } else {
      FillNumbers(value);
    }
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
