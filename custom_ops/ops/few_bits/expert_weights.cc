#include "ops/few_bits/expert_weights.h"

#include <cstdint>
#include <string>

#include "ops/schema.h"
#include "ort/op.h"

namespace coreai {
namespace {

namespace names = schema::gather_mm_nbits;

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
  all_.Read(input, names::kZeroPointsInput, names::kMinimumsInput);
}

void ExpertWeights::Check(const Checker& check) const {
  if (!all_.codes) check.Fail("input codes is missing");
  const std::size_t bytes = all_.group * all_.bits / 8;
  if (shape().size() != 4 || (!all_.table && shape()[3] != static_cast<std::int64_t>(bytes))) {
    check.Fail("input codes has shape " + ToString(shape()) + ", expected [experts, N, groups, " +
               std::to_string(bytes) + "]");
  }
  all_.CheckPresence(check);
  Shape of_groups(shape().begin(), shape().end() - 1);
  RequireShape(check, "zero_points", all_.zeros, of_groups);
  if (all_.scale_codes) {
    // Its last size is checked for an expert.
    const Shape& codes = all_.scale_codes.shape;
    if (codes.size() != 4 || codes[0] != of_groups[0] || codes[1] != of_groups[1]) {
      check.Fail("input scale_codes has shape " + ToString(codes) + ", expected " +
                 ToString({of_groups[0], of_groups[1]}) + ", blocks and bytes");
    }
    of_groups[2] = codes[2];
  }
  RequireShape(check, "scales", all_.scales, of_groups);
  RequireShape(check, "minimums", all_.minimums, of_groups);
  Expert(0).Check(check);
}

FewBitsInputs ExpertWeights::Expert(std::size_t index) const {
  FewBitsInputs expert = all_;
  expert.codes = Part(all_.codes, index);
  for (const auto part : kPartsOfRows) expert.*part = Part(all_.*part, index);
  return expert;
}

}  // namespace coreai
