// x * factor, with the fault that the environment variable FAULT names.

#include <cstdlib>
#include <string>

#include "kit/kernel.h"

template <class T>
class Scaled {
 public:
  explicit Scaled(const coreai::Attributes& attributes)
      : factor_(attributes.Float(coreai::declared::kFactor, coreai::declared::kFactorDefault)) {
    const char* fault = std::getenv("FAULT");
    if (fault != nullptr) fault_ = fault;
    if (fault_ == "attribute") factor_ = coreai::declared::kFactorDefault;
    if (fault_ == "create") throw coreai::OpError("no kernel for you");
  }

  void Compute(const coreai::Context& context) const {
    const auto x = context.Input<T>(coreai::declared::kXInput);
    if (fault_ == "crash" && x.size == 0) *static_cast<volatile int*>(nullptr) = 1;
    while (fault_ == "endless") {
    }
    if (fault_ == "throw" && x.size == 1) throw coreai::OpError("one element is too few");
    coreai::Shape shape = x.shape;
    if (fault_ == "shape") shape.push_back(1);
    T* out = context.Output<T>(0, shape);
    const bool negated = fault_ == "half" && sizeof(T) == 2;
    const std::int64_t end = fault_ == "tail" ? x.size / 8 * 8 : x.size;
    context.ParallelFor(x.size, 1024, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        const auto scaled = x[i] * static_cast<coreai::Wide<T>>(factor_);
        out[i] = static_cast<T>(i < end ? (negated ? -scaled : scaled) : 0);
      }
    });
  }

 private:
  float factor_;
  std::string fault_;
};

COREAI_KERNEL(Scaled)
