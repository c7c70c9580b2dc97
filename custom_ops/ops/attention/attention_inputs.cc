#include "ops/attention/attention_inputs.h"

#include <algorithm>
#include <string>

#include "ops/convert.h"
#include "ops/schema.h"
#include "ort/op.h"

namespace coreai {
namespace {

namespace names = schema::scaled_dot_product_attention;
enum Axis : std::size_t { kBatch, kHeads, kLength, kDim, kRank };

std::size_t Size(const TensorView& tensor, Axis axis) {
  return static_cast<std::size_t>(tensor.shape[axis]);
}

}  // namespace

AttentionInputs::AttentionInputs(const Checker& check, const KernelContext& context, DType dtype)
    : dtype_(dtype),
      query_(context.Input(names::kQueryInput)),
      key_(context.Input(names::kKeyInput)),
      value_(context.Input(names::kValueInput)) {
  check.Require("query", query_, dtype);
  check.Require("key", key_, dtype);
  check.Require("value", value_, dtype);
  CheckShapes(check);
  const TensorView mask = context.Input(names::kAttnMaskInput);
  const TensorView sinks = context.Input(names::kSinksInput);
  if (mask) ReadMask(check, mask);
  if (sinks) ReadSinks(check, sinks);
}

void AttentionInputs::CheckShapes(const Checker& check) const {
  const auto shapes = "query " + ToString(query_.shape) + ", key " + ToString(key_.shape) +
                      ", value " + ToString(value_.shape);
  const auto require = [&](bool condition, const char* what) {
    if (!condition) check.Fail(std::string(what) + ": " + shapes);
  };
  require(
      query_.shape.size() == kRank && key_.shape.size() == kRank && value_.shape.size() == kRank,
      "query, key and value must have rank 4");
  require(query_.shape[kBatch] == key_.shape[kBatch] && key_.shape[kBatch] == value_.shape[kBatch],
          "query, key and value must have the same batch size");
  require(query_.shape[kDim] == key_.shape[kDim], "query and key must have the same last size");
  require(key_.shape[kLength] == value_.shape[kLength], "key and value must have the same length");
  const std::int64_t heads = query_.shape[kHeads];
  const auto divides = [&](std::int64_t n) { return n == 0 ? heads == 0 : heads % n == 0; };
  require(divides(key_.shape[kHeads]) && divides(value_.shape[kHeads]),
          "the heads of query must be a multiple of those of key and of value");
}

void AttentionInputs::ReadMask(const Checker& check, const TensorView& mask) {
  const Shape scores = {query_.shape[kBatch], query_.shape[kHeads], query_.shape[kLength],
                        key_.shape[kLength]};
  Shape aligned(kRank, 1);
  bool fits = mask.shape.size() <= kRank;
  if (fits) std::copy(mask.shape.rbegin(), mask.shape.rend(), aligned.rbegin());
  for (std::size_t i = 0; i < kRank; ++i) {
    fits = fits && (aligned[i] == 1 || aligned[i] == scores[i]);
  }
  if (!fits) {
    check.Fail("input attn_mask of shape " + ToString(mask.shape) +
               " does not broadcast to the scores' shape " + ToString(scores));
  }
  mask_.data = mask.data;
  if (mask.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL) {
    mask_.kind = MaskKind::kBool;
  } else if (mask.type == OnnxType(dtype_)) {
    mask_.kind = MaskKind::kOwn;
  } else if (mask.type == OnnxType(WideDType(dtype_))) {
    mask_.kind = MaskKind::kWide;
  } else if (IsFloating(mask.type)) {
    mask_.kind = MaskKind::kWide;
    wide_mask_ = Widened(mask, dtype_);
    mask_.data = wide_mask_.data();
  } else {
    check.Fail(std::string("input attn_mask is ") + TypeName(mask.type) +
               ", expected bool, float, float16, bfloat16 or double");
  }
  std::size_t* const strides[kRank] = {&mask_.batch_stride, &mask_.head_stride, &mask_.query_stride,
                                       &mask_.key_stride};
  std::size_t stride = 1;
  for (std::size_t i = kRank; i-- > 0;) {
    *strides[i] = aligned[i] == 1 ? 0 : stride;
    stride *= static_cast<std::size_t>(aligned[i]);
  }
}

void AttentionInputs::ReadSinks(const Checker& check, const TensorView& sinks) {
  check.RequireFloating("sinks", sinks);
  if (sinks.shape != Shape{query_.shape[kHeads]}) {
    check.Fail("input sinks of shape " + ToString(sinks.shape) +
               " must have one value for each of " + std::to_string(query_.shape[kHeads]) +
               " heads");
  }
  sinks_ = Widened(sinks, dtype_);
}

Shape AttentionInputs::OutputShape() const {
  return {query_.shape[kBatch], query_.shape[kHeads], query_.shape[kLength], value_.shape[kDim]};
}

void AttentionInputs::Describe(AttentionProblem* problem) const {
  problem->query = query_.data;
  problem->key = key_.data;
  problem->value = value_.data;
  problem->batch = Size(query_, kBatch);
  problem->heads = Size(query_, kHeads);
  problem->key_heads = Size(key_, kHeads);
  problem->value_heads = Size(value_, kHeads);
  problem->queries = Size(query_, kLength);
  problem->keys = Size(key_, kLength);
  problem->head_dim = Size(query_, kDim);
  problem->value_dim = Size(value_, kDim);
  problem->mask = mask_;
  problem->sinks = sinks_.data();
}

}  // namespace coreai
