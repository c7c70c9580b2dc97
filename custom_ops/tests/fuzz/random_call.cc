#include "fuzz/random_call.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace coreai::fuzz {
namespace {

using Ints = std::map<std::string, std::int64_t>;

// Dims of the inputs that fit together: letters are sizes; G is twice F, M is twice L, W is V times
// H, Z 4 times A, Q is 16, X 64, R and U are K and M groups of the attribute group_size, Y is L
// blocks of 256, P is a palette for the attribute bits; # is an index, % a tensor of bytes, @ a
// layout of blocks; "" is rank 0, kNone an absent input, ! one that is always present.
constexpr const char* kNone = nullptr;
struct Layout {
  std::vector<const char*> inputs;
  Ints ints = {};  // what attributes must be
};
using Layouts = std::vector<Layout>;

Layouts AttentionLayouts() {
  return {{{"B H T D", "B H S D", "B H S E", "B H T S", "H"}},
          {{"B W T D", "B V S D", "B V S E", "T S", "W"}},
          {{"B W T D", "B V S D", "B V S D", "B 1 1 S", "W"}}};
}

Layouts BshdAttentionLayouts() {
  return {{{"B T H D", "B S H D", "B S H E", "B H T S"}},
          {{"B T W D", "B S V D", "B S V E", "T S"}},
          {{"B T W D", "B S V D", "B S V D", "B 1 1 S"}}};
}

Layouts GatherMmLayouts() {
  const auto layout = [](std::vector<const char*> inputs, std::int64_t axes, std::int64_t turned) {
    return Layout{std::move(inputs), {{"num_batch_axes", axes}, {"transpose_rhs", turned}}};
  };
  return {layout({"B T D", "H D E", "#B", "#B"}, 0, 0),
          layout({"B H T D", "B S D E", "#B T", "#B T"}, 1, 0),
          layout({"H T D", "V E D", "#T", "#T"}, 0, 1),
          layout({"H T D", "V D E", "#T V", "#V"}, 0, 0),
          layout({"T D", "V D E", "#S", "#T"}, 0, 0),
          layout({"T D", "V E D", "#S", "#T 1"}, 0, 1),
          layout({"T 1 D", "V E D", "#T", "#T V"}, 0, 1),
          layout({"B T D", "B D E", "#S", "#S"}, 2, 0)};
}

// Attributes of a weight; activations are rounded to 8 bits or not.
Ints Few(std::int64_t bits, std::int64_t group, std::int64_t rounding, std::int64_t scales = 0) {
  return {
      {"bits", bits}, {"group_size", group}, {"activation_bits", rounding}, {"scale_bits", scales}};
}

// Two 4-bit codes or one 8-bit code to a group, many, or groups of 16 bytes, as tiles of AMX take
// them. The later ones have minimums, and scales of two levels, two groups to a block.
Layouts LinearNbitsLayouts() {
  return {
      {{"B T G", "%S F 1", "S F", "S F", "P", "S", kNone, kNone}, Few(4, 2, 0)},
      {{"T G", "%S F 1", "S F", "%S F", "P", "S", kNone, kNone}, Few(4, 2, 0)},
      {{"T F", "%S F 1", "S F", "%S F", "P", "S", kNone, kNone}, Few(8, 1, 0)},
      {{"T R", "%S K Q", "S K", "%S K", "P", "S", kNone, kNone}, Few(4, 32, 8)},
      {{"B T R", "%S K Q", "S K", "%S K", "P", "S", kNone, kNone}, Few(2, 64, 8)},
      {{"T R", "%S K Q", "S K", "S K", "P", "S", kNone, kNone}, Few(8, 16, 8)},
      {{"T R", "%S K Q", "S K", "%S K", "P", "S", kNone, kNone}, Few(4, 32, 0)},
      {{"B T R", "%S K Q", "S K", "%S K", "P", "S", kNone, kNone}, Few(2, 64, 0)},
      {{"T R", "%S K Q", "S K", "S K", "P", "S", kNone, kNone}, Few(8, 16, 0)},
      {{"T R", "%S K 5", "S K", "%S K", "P", "S", kNone, kNone}, Few(5, 8, 0)},
      {{"T R", "%S K 3", "S K", "%S K", "P", "S", kNone, kNone}, Few(6, 4, 8)},
      {{"B T R", "%S K Q", "S K", kNone, kNone, "S", "!S K", kNone}, Few(4, 32, 0)},
      {{"T R", "%S K Q", "S K", kNone, kNone, "S", "!S K", kNone}, Few(4, 32, 8)},
      {{"T U", "%S M 5", "S L", kNone, kNone, "S", kNone, "!%S L 1"}, Few(5, 8, 0, 4)},
      {{"T U", "%S M 3", "S L", kNone, kNone, "S", "!S L", "!%S L 3"}, Few(6, 4, 8, 6)},
      {{"B T U", "%S M Q", "S L", kNone, "P", "S", kNone, "!%S L 2"}, Few(4, 32, 0, 8)},
      {{"T U", "%S M Q", "S L", kNone, kNone, "S", "!S L", "!%S L 3"}, Few(2, 64, 0, 6)},
      {{"T Y", "%S L 5", "S L", kNone, "!P", "S", kNone, kNone, "!%9 X", "!@9 4"}, Few(8, 256, 0)},
      {{"B T Y", "%S L 5", "S L", kNone, "!P", "S", kNone, kNone, "!%9 X", "!@9 4"},
       Few(8, 256, 8)}};
}

Layouts GatherMmNbitsLayouts() {
  return {
      {{"B T G", "%H S F 1", "H S F", "#B", "H S F", "P", kNone, kNone}, Few(4, 2, 0)},
      {{"T 1 1 G", "%H S F 1", "H S F", "#T B", "%H S F", "P", kNone, kNone}, Few(4, 2, 0)},
      {{"T F", "%V S F 1", "V S F", "#", "%V S F", "P", kNone, kNone}, Few(8, 1, 0)},
      {{"B T R", "%H S K Q", "H S K", "#B", "%H S K", "P", kNone, kNone}, Few(4, 32, 8)},
      {{"B T R", "%H S K Q", "H S K", "#", "%H S K", "P", kNone, kNone}, Few(8, 16, 8)},
      {{"B T R", "%H S K Q", "H S K", "#B", "%H S K", "P", kNone, kNone}, Few(4, 32, 0)},
      {{"B T R", "%H S K Q", "H S K", "#", "%H S K", "P", kNone, kNone}, Few(8, 16, 0)},
      {{"B T R", "%H S K Q", "H S K", "#B", kNone, kNone, "!H S K", kNone}, Few(4, 32, 0)},
      {{"B T U", "%H S M 5", "H S L", "#B", kNone, kNone, kNone, "!%H S L 1"}, Few(5, 8, 0, 4)},
      {{"B T U", "%H S M 3", "H S L", "#", kNone, kNone, "!H S L", "!%H S L 3"}, Few(6, 4, 8, 6)},
      {{"B T U", "%H S M Q", "H S L", "#B", kNone, "P", kNone, "!%H S L 2"}, Few(4, 32, 0, 8)},
      {{"B T Y", "%H S L 5", "H S L", "#B", kNone, "!P", kNone, kNone, "!%9 X", "!@9 4"},
       Few(8, 256, 0)}};
}

// The last inputs, a table and a layout of blocks, are absent unless they are named.
Layouts WithoutTables(Layouts layouts) {
  for (Layout& layout : layouts) layout.inputs.resize(10, kNone);
  return layouts;
}

Layouts RopeLayouts() {
  const Layouts all = {{{"B H T G", "T F", "T F", "#B T", "F", "#B"}},
                       {{"B H T G", "S F", "S F", "#B T", "F", "#"}},
                       {{"B T G", "T F", "T F", "#T", "F", "#B 1"}},
                       {{"B H T D", "T F", "T F", "#1", "1", "#1"}},
                       {{"B H T G", "B 1 T F", "B 1 T F", "#T", "F", "#1"}}};
  Layouts whole = all;
  for (Layout& layout : whole) layout.ints["dims"] = 0;
  return whole;
}

const Layouts& LayoutsOf(const std::string& op) {
  static const std::map<std::string, Layouts> all = {
      {"add_bias", {{{"B T D", "D"}}, {{"D", "D"}}, {{"B H T D", "D"}}}},
      {"add_low_rank",
       {{{"B T D", "B T E", "B E F", "B F D"}},
        {{"B T D", "B T E", "1 E F", "1 F D"}},
        {{"B H T D", "B H T E", "E F", "B H F D"}},
        {{"T D", "T E", "E F", "F D"}}}},
      {"scaled_dot_product_attention", AttentionLayouts()},
      {"scaled_dot_product_attention_bshd", BshdAttentionLayouts()},
      {"attention_nbits",
       {{{"B H T D", "%B H S D", "B H S 1", "%B H S E", "B H S 1"}, {{"bits", 8}}},
        {{"B W T G", "%B V S F", "B V S 1", "%B V S F", "B V S 1", "S", "W"}, {{"bits", 4}}}}},
      {"paged_attention",
       {{{"B W T D", "N 4 V D", "N 4 V E", "#B A", "B 1 T Z", "W"}},
        {{"B W T D", "N 1 V D", "N 1 V D", "#B S", "T S", "W"}}}},
      {"gated_delta_update",
       {{{"B H T D", "B H T D", "B H T E", "B H T", "B H T", "B H D E"}},
        {{"B V T D", "B V T D", "B W T E", "B W T", "B W T", "B W D E"}}}},
      {"gather_mm", GatherMmLayouts()},
      {"gather_mm_nbits", WithoutTables(GatherMmNbitsLayouts())},
      {"linear_nbits", WithoutTables(LinearNbitsLayouts())},
      {"rope", RopeLayouts()},
      {"group_norm", {{{"B W S T", "W", "W"}}, {{"B W", "W", "W"}}, {{"B W T", "W", "W"}}}},
      {"kv_cache_update", {{{"B H S D", "B H T D", "#B"}}, {{"B H S D", "B H 1 D", "#"}}}},
      {"skip_rms_norm", {{{"B T D", "B T D", "D"}}, {{"B T D", "B T D", "T 1"}}}},
      {"skip_layer_norm", {{{"B T D", "B T D", "D", "D"}}, {{"T D", "T D", "D", "1"}}}},
      {"rms_norm", {{{"B T D", "D"}}, {{"B H T D", "H 1 D"}}, {{"T D", "1"}}}},
      {"layer_norm", {{{"B T D", "D", "D"}}, {{"B H T D", "H 1 D", "T D"}}, {{"T D", "1", "D"}}}},
  };
  static const Layouts unary = {{{"B T D", "B T D"}},
                                {{"T D", "T D"}},
                                {{"D", "D"}},
                                {{"", ""}},
                                {{"B H T D E", "B H T D E"}}};
  const auto found = all.find(op.substr(0, op.find('.')));
  return found == all.end() ? unary : found->second;
}

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
  if (letter == 'W') return size = Product(Size('V'), Size('H'));
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
  const double small = static_cast<double>(static_cast<int>(Below(64)) - 32) / 16;
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
    static const char* const kActivations[] = {"none", "silu", "gelu", "gelu_tanh"};
    return std::string(wild ? kTexts[Below(6)] : kActivations[Below(4)]);
  }
  return kInts[Below(wild ? 10 : 6)];
}

void RandomCall::Fill(const OrtCustomOp& op, OrtKernelInfo* info, OrtKernelContext* context) {
  sizes_.assign(128, -1);
  tame_ = true;
  // Kernels work in blocks of up to 384; most calls are small, so that there can be many.
  static constexpr char kLarge[] = "STDEF";
  large_.clear();
  if (OneIn(20)) large_ += kLarge[Below(5)];
  if (OneIn(60)) large_ += kLarge[Below(5)];
  index_limit_ = 1 + Below(3);
  info->invent = [this](const std::string& name) { return Invent(name); };
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
    context->inputs.push_back(MakeValue(type, Shape(dims), Below(3)));
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
