#pragma once

#include <cmath>

#include "reference/gated_activation.h"

namespace coreai::testing {

/// activation(input + bias) in double.
inline double AddBiasReference(Activation activation, double input, double bias) {
  const double sum = input + bias;
  switch (activation) {
    case Activation::kNone:
      return sum;
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-sum));
    case Activation::kTanh:
      return std::tanh(sum);
    case Activation::kExp:
      return std::exp(sum);
    default:
      return GatedActivationReference(activation, sum, 1.0);
  }
}

}  // namespace coreai::testing
