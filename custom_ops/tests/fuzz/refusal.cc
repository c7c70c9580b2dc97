#include "fuzz/refusal.h"

#include <cctype>
#include <cstring>
#include <sstream>

#include "ops/schema.h"

namespace coreai::fuzz {
namespace {

const schema::Composite* Declaration(const std::string& op) {
  for (const schema::Composite* each : schema::kComposites) {
    if (op == each->name) return each;
  }
  return nullptr;
}

bool IsPartOfWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Whether `text` has `word` with nothing of a word before and after it.
bool HasWord(const std::string& text, const std::string& word) {
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool begins = at == 0 || !IsPartOfWord(text[at - 1]) || !IsPartOfWord(word.front());
    const bool ends = end == text.size() || !IsPartOfWord(text[end]) || !IsPartOfWord(word.back());
    if (begins && ends) return true;
  }
  return false;
}

std::string Text(const std::vector<std::int64_t>& numbers) {
  std::string text = "[";
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(numbers[i]);
  }
  return text + "]";
}

const char* TypeText(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return "float";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      return "float16";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      return "bfloat16";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
      return "double";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
      return "int32";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
      return "int64";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8:
      return "uint8";
    default:
      return "bool";
  }
}

struct AttributeText {
  std::string operator()(std::monostate) const { return ""; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(const std::string& value) const { return "\"" + value + "\""; }
  std::string operator()(const std::vector<std::int64_t>& value) const { return Text(value); }
  std::string operator()(float value) const {
    std::ostringstream text;
    text << value;
    return text.str();
  }
};

// Whether the message has the value of an attribute that it names.
bool NamesAttribute(const std::string& message, const OrtKernelInfo& info, bool* with_value) {
  bool named = false;
  for (const auto& [name, attribute] : info.attributes) {
    if (!HasWord(message, name)) continue;
    named = true;
    const std::string value = std::visit(AttributeText(), attribute);
    *with_value = *with_value || (!value.empty() && HasWord(message, value));
  }
  return named;
}

// Whether the message has the shape, the element type, or an element of an input of indices.
bool HasValue(const std::string& message, const OrtValue& input) {
  if (HasWord(message, Text(input.info.shape)) || HasWord(message, TypeText(input.info.type))) {
    return true;
  }
  const std::size_t size = ElementBytes(input.info.type);
  if (input.info.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 &&
      input.info.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32) {
    return false;
  }
  for (std::size_t at = input.shift; at < input.memory.size(); at += size) {
    std::int64_t wide = 0;
    std::int32_t narrow = 0;
    std::memcpy(size == 8 ? static_cast<void*>(&wide) : &narrow, input.memory.data() + at, size);
    if (HasWord(message, std::to_string(size == 8 ? wide : narrow))) return true;
  }
  return false;
}

}  // namespace

std::string MissingInRefusal(const std::string& op, const std::string& message,
                             const OrtKernelInfo& info, const OrtKernelContext& context) {
  if (message.compare(0, op.size() + 2, op + ": ") != 0) return "the op";
  const schema::Composite* declaration = Declaration(op);
  if (declaration == nullptr) return "the declaration of the op, in this file";
  const std::string said = message.substr(op.size() + 2);
  if (said == kNoMemory) return "";
  bool has_value = false;
  bool has_name = NamesAttribute(said, info, &has_value);
  for (std::size_t i = 0; i < declaration->input_count; ++i) {
    if (!HasWord(said, declaration->inputs[i].name)) continue;
    has_name = true;
    const OrtValue* input = i < context.inputs.size() ? context.inputs[i].get() : nullptr;
    has_value = has_value || (input == nullptr ? HasWord(said, "missing") : HasValue(said, *input));
  }
  if (!has_name) return "an input or attribute";
  return has_value ? "" : "a value";
}

}  // namespace coreai::fuzz
