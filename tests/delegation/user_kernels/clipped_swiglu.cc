// silu(min(gate, limit)) * clamp(up, -limit, limit), in one pass.

#include "kit/kernel.h"

#include <algorithm>

template <class T>
class ClippedSwiglu {
 public:
  explicit ClippedSwiglu(const coreai::Attributes& attributes)
      : limit_(attributes.Float("limit", 7.0f)) {}

  void Compute(const coreai::Context& context) const {
    using Wide = coreai::Wide<T>;
    const auto gate = context.Input<T>(0), up = context.Input<T>(1);
    T* out = context.Output<T>(0, gate.shape);
    const auto limit = static_cast<Wide>(limit_);
    context.ParallelFor(gate.size, 4096, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const Wide g = std::min<Wide>(gate[i], limit);
        const Wide u = std::clamp<Wide>(up[i], -limit, limit);
        out[i] = static_cast<T>(g * coreai::Sigmoid(g) * u);
      }
    });
  }

 private:
  float limit_;
};

COREAI_KERNEL(ClippedSwiglu)
