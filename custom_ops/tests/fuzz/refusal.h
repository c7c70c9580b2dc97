#pragma once

#include <string>

#include "fuzz/fake_ort.h"

namespace coreai::fuzz {

/// What is missing in the message of a refused call: it must name the op, one of its inputs or
/// attributes, and something of the call: a shape, an element type, an index or an attribute's
/// value. Empty if nothing is missing.
std::string MissingInRefusal(const std::string& op, const std::string& message,
                             const OrtKernelInfo& info, const OrtKernelContext& context);

}  // namespace coreai::fuzz
