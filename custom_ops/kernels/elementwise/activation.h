#pragma once

namespace coreai {

enum class Activation { kNone, kSilu, kGelu, kGeluTanh };

}  // namespace coreai
