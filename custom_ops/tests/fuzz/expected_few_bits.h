#pragma once

#include "fuzz/call.h"

namespace coreai::fuzz {

/// What the definitions of the products with few-bit weights give, in double.
Arrays LinearNbits(const Call& call);
Arrays GatherMmNbits(const Call& call);

}  // namespace coreai::fuzz
