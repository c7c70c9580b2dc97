#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fuzz/fake_ort.h"

namespace coreai::fuzz {

/// Makes up attributes and inputs of calls. Most fit together, so that kernels run; in the others a
/// size, a rank, a type or an index is wrong.
class RandomCall {
 public:
  /// Of `fine` numbers all bits are random, so that sums of them depend on the order.
  explicit RandomCall(std::uint64_t seed, bool fine = false) : random_{seed}, fine_(fine) {}

  /// Inputs of a call of `op`, and how many threads it runs on. Attributes are invented when the
  /// kernel asks for them.
  void Fill(const OrtCustomOp& op, OrtKernelInfo* info, OrtKernelContext* context);

  /// Whether all numbers of the call are of everyday size.
  bool tame() const { return tame_; }

  /// A number below n.
  std::size_t Below(std::size_t n) { return random_() % n; }
  bool OneIn(std::size_t n) { return Below(n) == 0; }

 private:
  void ForgetSizes();
  OrtKernelInfo::Attribute Invent(const std::string& name);
  std::vector<std::int64_t> Shape(const std::string& dims);
  std::int64_t Size(char letter);
  std::int64_t HugeSize();
  ONNXTensorElementDataType AnyType();
  void FillNumbers(OrtValue* value);
  void FillIndices(OrtValue* value);
  void FillLayout(OrtValue* value);
  std::uint64_t FloatBits(ONNXTensorElementDataType type, std::size_t kind);
  template <typename E>
  void Store(OrtValue* value, std::size_t index, E element);

  // Cheap to seed: every call has a seed of its own.
  struct Random {
    std::uint64_t state;
    std::uint64_t operator()();
  };

  Random random_;
  bool fine_;
  std::map<std::string, std::int64_t> ints_;  // that attributes must be
  std::size_t index_limit_ = 1;
  bool tame_ = true;
  std::vector<std::int64_t> sizes_;  // of the letters of this call; -1: not chosen yet
  std::string large_;                // letters whose sizes are
};

}  // namespace coreai::fuzz
