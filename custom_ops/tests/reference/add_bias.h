#pragma once

#include "reference/gated_activation.h"

namespace coreai::testing {

/// activation(input + bias) in double.
inline double AddBiasReference(Activation activation, double input, double bias) {
  const double sum = input + bias;
  return activation == Activation::kNone ? sum : GatedActivationReference(activation, sum, 1.0);
}

}  // namespace coreai::testing
