// x * factor, with the fault that the environment variable FAULT names.

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

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
    if (fault_ == "exit" && x.size == 0) std::_Exit(0);
    if (fault_ == "beyond") out[x.size + 4095] = T{};
    if (fault_ == "before") out[-1] = T{};
    if (fault_ == "input" && x.size > 0) const_cast<T*>(x.data)[0] = T{};
    if (fault_ == "reads beyond") static_cast<void>(*const_cast<const volatile T*>(x.data + x.size));
    const bool negated = fault_ == "half" && sizeof(T) == 2;
    const std::int64_t end = fault_ == "tail" ? x.size / 8 * 8 : x.size;
    context.ParallelFor(x.size, 1024, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        const auto scaled = Replaced(x[i]) * static_cast<coreai::Wide<T>>(factor_);
        const auto result = negated || Differs(x[i]) ? -scaled : scaled;
        if (fault_ != "unwritten" || i < 7) out[i] = static_cast<T>(i < end ? result : 0);
      }
    });
    Corrupt(x, out);
  }

 private:
  T Replaced(T x) const {
    return fault_ == "nan" && std::isnan(static_cast<coreai::Wide<T>>(x)) ? T{} : x;
  }

  bool Differs(T x) const {
    const auto wide = static_cast<coreai::Wide<T>>(x);
    return (fault_ == "infinity" && std::isinf(wide)) ||
           (fault_ == "large" && std::isfinite(wide) && std::abs(wide) > 100);
  }

  void Corrupt(const coreai::Tensor<T>& x, T* out) const {
    if (fault_ == "many" && x.size > 100000) out[100000] = T{};
    if (fault_ == "counts" && ++calls_ > 100 && x.size > 0) out[0] = T{};
    if (fault_ == "keeps" && x.size > 1) {
      if (kept_.size() != static_cast<std::size_t>(x.size)) kept_.assign(out, out + x.size);
      std::copy(kept_.begin(), kept_.end(), out);
    }
    if (fault_ == "race" && x.size > 1) {
      if (++inside_ > 1) out[0] = T{};
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      --inside_;
    }
  }

  mutable std::atomic<int> calls_{0}, inside_{0};
  mutable std::vector<T> kept_;
  float factor_;
  std::string fault_;
};

COREAI_KERNEL(Scaled)
