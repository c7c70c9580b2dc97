#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "fuzz/array.h"
#include "fuzz/fake_ort.h"

namespace coreai::fuzz {

using Shape = std::vector<std::int64_t>;
using Arrays = std::vector<Array>;

/// A call as its definition sees it.
struct Call {
  const OrtKernelInfo& info;
  ONNXTensorElementDataType type;  ///< of the op
  Arrays inputs;
  bool judged = true;

  template <typename E>
  E Attribute(const char* name, E absent) const {
    const auto found = info.attributes.find(name);
    const E* value = found == info.attributes.end() ? nullptr : std::get_if<E>(&found->second);
    return value == nullptr ? absent : *value;
  }
  std::int64_t Int(const char* name, std::int64_t absent) const { return Attribute(name, absent); }
  double Float(const char* name, float absent) const {
    return static_cast<double>(Attribute(name, absent));
  }
  std::string Text(const char* name, const char* absent) const {
    return Attribute(name, std::string(absent));
  }
  const Array& In(std::size_t i) const {
    static const Array kAbsent;
    return i < inputs.size() ? inputs[i] : kAbsent;
  }
};

}  // namespace coreai::fuzz
