#include "ort/kernel_info.h"

#include <sstream>

namespace coreai {

bool KernelInfo::Ok(OrtStatus* status) const {
  if (status == nullptr) return true;
  api_.ReleaseStatus(status);
  return false;
}

TensorView KernelInfo::Constant(std::size_t input) const {
  if (options_.reads_weights) return TensorView();
  int is_constant = 0;
  const OrtValue* value = nullptr;
  ThrowOnError(api_, api_.KernelInfoGetConstantInput_tensor(info_, input, &is_constant, &value));
  return is_constant == 0 || value == nullptr ? TensorView() : ViewOf(api_, nullptr, value);
}

// The C API cannot query whether an attribute exists. Reading it as a list ignores its type: that
// succeeds, perhaps with no elements, for any existing attribute.
bool KernelInfo::Has(const char* name) const {
  std::size_t size = 0;
  return Ok(api_.KernelInfoGetAttributeArray_int64(info_, name, nullptr, &size));
}

std::string KernelInfo::Describe(const char* name) const {
  std::ostringstream text;
  std::int64_t whole = 0;
  float number = 0;
  std::size_t size = 0;
  if (Ok(api_.KernelInfoGetAttribute_int64(info_, name, &whole))) {
    text << whole;
  } else if (Ok(api_.KernelInfoGetAttribute_float(info_, name, &number))) {
    text << number;
  } else if (Ok(api_.KernelInfoGetAttribute_string(info_, name, nullptr, &size))) {
    std::string value(size, '\0');
    ThrowOnError(api_, api_.KernelInfoGetAttribute_string(info_, name, value.data(), &size));
    text << '"' << value.c_str() << '"';
  } else if (Ok(api_.KernelInfoGetAttributeArray_int64(info_, name, nullptr, &size)) && size > 0) {
    std::vector<std::int64_t> values(size);
    ThrowOnError(api_, api_.KernelInfoGetAttributeArray_int64(info_, name, values.data(), &size));
    for (std::size_t i = 0; i < size; ++i) text << (i == 0 ? "[" : ", ") << values[i];
    text << ']';
  } else {
    text << "empty or of another type";
  }
  return text.str();
}

void KernelInfo::WrongType(const char* name, const char* wanted) const {
  throw OpError(std::string(op_) + ": attribute " + name + " is " + Describe(name) + ", expected " +
                wanted);
}

float KernelInfo::Float(const char* name, float absent) const {
  float value = 0;
  if (Ok(api_.KernelInfoGetAttribute_float(info_, name, &value))) return value;
  if (Has(name)) WrongType(name, "a float");
  return absent;
}

std::int64_t KernelInfo::Int(const char* name, std::int64_t absent) const {
  std::int64_t value = 0;
  if (Ok(api_.KernelInfoGetAttribute_int64(info_, name, &value))) return value;
  if (Has(name)) WrongType(name, "an int");
  return absent;
}

std::string KernelInfo::String(const char* name, const char* absent) const {
  std::size_t size = 0;
  if (Ok(api_.KernelInfoGetAttribute_string(info_, name, nullptr, &size))) {
    std::string value(size, '\0');
    ThrowOnError(api_, api_.KernelInfoGetAttribute_string(info_, name, value.data(), &size));
    value.resize(size == 0 ? 0 : size - 1);  // the reported size counts the terminating zero
    return value;
  }
  if (Has(name)) WrongType(name, "a string");
  return absent;
}

std::vector<std::int64_t> KernelInfo::Ints(const char* name,
                                           std::vector<std::int64_t> absent) const {
  std::int64_t single = 0;
  if (Ok(api_.KernelInfoGetAttribute_int64(info_, name, &single))) return {single};
  std::size_t size = 0;
  if (!Ok(api_.KernelInfoGetAttributeArray_int64(info_, name, nullptr, &size))) return absent;
  if (size == 0) WrongType(name, "a list of ints, not empty");
  std::vector<std::int64_t> values(size);
  ThrowOnError(api_, api_.KernelInfoGetAttributeArray_int64(info_, name, values.data(), &size));
  return values;
}

}  // namespace coreai
