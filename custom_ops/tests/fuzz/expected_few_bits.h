#pragma once

#include "fuzz/call.h"

namespace coreai::fuzz {

/// What the definitions of the products with few-bit weights give, in double.
Arrays LinearNbits(const Call& call);
Arrays GatherMmNbits(const Call& call);

/// Keys or values of attention_nbits: codes with a scale for each token and head.
Array Dequantized(const Array& codes, const Array& scales, std::int64_t bits);

}  // namespace coreai::fuzz
