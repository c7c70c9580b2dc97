#pragma once

#include <string>
#include <vector>

#include "fuzz/fake_ort.h"

namespace coreai::fuzz {

/// Whether the outputs of a call that ran are what its definition says, computed in double; what
/// is wrong, or empty. Calls that are large, or whose result is ill-conditioned, are not judged:
/// `judged` says.
std::string WrongOutputs(const std::string& op, const OrtKernelInfo& info,
                         const OrtKernelContext& context, bool* judged);

}  // namespace coreai::fuzz
