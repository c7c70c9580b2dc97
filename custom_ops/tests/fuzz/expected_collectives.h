#pragma once

#include "fuzz/array.h"
#include "fuzz/call.h"

namespace coreai::fuzz {

/// What collectives of the parts of all ranks return, in double.
Arrays AllReduce(const Call& call);
Arrays AllGather(const Call& call);

}  // namespace coreai::fuzz
