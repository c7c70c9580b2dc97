#include "ops/few_bits/expert_weights.h"

#include <cstdint>
#include <string>

#include "ops/schema.h"
#include "ort/op.h"

namespace coreai {
namespace {

namespace names = schema::gather_mm_nbits;

std::size_t ElementBytes(ONNXTensorElementDataType type) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    if (OnnxType(dtype) == type) return SizeOf(dtype);
  }
  return 1;  // uint8
}

// One expert of a tensor, which may be absent.
TensorView Part(const TensorView& all, std::size_t index) {
  if (!all) return all;
  TensorView part = all;
  part.shape.erase(part.shape.begin());
  const std::size_t bytes = ElementCount(part.shape) * ElementBytes(all.type);
  part.data = static_cast<const char*>(all.data) + index * bytes;
  return part;
}

}  // namespace

ExpertWeights::ExpertWeights(const FewBitsInputs& attributes,
                             const std::function<TensorView(std::size_t)>& input)
    : all_(attributes) {
  all_.Read(input, names::kZeroPointsInput);
}

void ExpertWeights::Check(const Checker& check) const {
  if (!all_.codes) check.Fail("input codes is missing");
  const std::size_t bytes = all_.group * all_.bits / 8;
  if (shape().size() != 4 || shape()[3] != static_cast<std::int64_t>(bytes)) {
    check.Fail("input codes has shape " + ToString(shape()) + ", expected [experts, N, groups, " +
               std::to_string(bytes) + "]");
  }
  for (const auto& [name, part] : kPartsOfRows) {
    const TensorView& input = all_.*part;
    // The other sizes are checked for an expert.
    if (!input || (input.shape.size() > 2 && input.shape[0] == shape()[0])) continue;
    check.Fail(std::string("input ") + name + " has shape " + ToString(input.shape) +
               ", expected " + ToString({shape().begin(), shape().end() - 1}));
  }
  Expert(0).Check(check);
}

FewBitsInputs ExpertWeights::Expert(std::size_t index) const {
  FewBitsInputs expert = all_;
  expert.codes = Part(all_.codes, index);
  for (const auto& [name, part] : kPartsOfRows) expert.*part = Part(all_.*part, index);
  return expert;
}

}  // namespace coreai
