#pragma once

#include <cmath>

#include "kernels/elementwise/activation.h"

namespace coreai::testing {

/// activation(gate) * up in double.
inline double GatedActivationReference(Activation activation, double gate, double up) {
  switch (activation) {
    case Activation::kSilu:
      return gate / (1 + std::exp(-gate)) * up;
    case Activation::kGelu:
      return 0.5 * gate * std::erfc(-gate / std::sqrt(2.0)) * up;
    default: {
      const double inner = std::sqrt(2 / std::acos(-1.0)) * (gate + 0.044715 * gate * gate * gate);
      return gate / (1 + std::exp(-2 * inner)) * up;
    }
  }
}

}  // namespace coreai::testing
