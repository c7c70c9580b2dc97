#pragma once

namespace coreai {

enum class Activation { kNone, kSilu, kGelu, kGeluTanh, kSigmoid, kTanh, kExp };

}  // namespace coreai
