#pragma once

#include <string>

#include "fuzz/call.h"
#include "fuzz/fake_ort.h"

namespace coreai::fuzz {

/// What the definitions of the ops of attention give, in double.
Arrays AnyAttention(const std::string& op, const Call& call, const OrtKernelContext& context);

}  // namespace coreai::fuzz
