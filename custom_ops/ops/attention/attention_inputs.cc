#include "ops/attention/attention_inputs.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "ops/convert.h"
#include "ort/op.h"

namespace coreai {
namespace {

enum Axis : std::size_t { kBatch, kHeads, kLength, kDim, kRank };
enum PoolAxis : std::size_t { kBlocks, kTokens, kPoolHeads };

std::size_t Size(const TensorView& tensor, Axis axis) {
  return static_cast<std::size_t>(tensor.shape[axis]);
}

}  // namespace

AttentionInputs::AttentionInputs(const Checker& check, const AttentionTensors& tensors, DType dtype)
    : dtype_(dtype),
      query_(tensors.query),
      key_(tensors.key),
      value_(tensors.value),
      bshd_(tensors.bshd) {
  const bool paged = tensors.block_table.present;
  check.Require("query", query_, dtype);
  if (tensors.bits != 0) CheckCodes(check, tensors);
  if (codes_.bits == 0) {
    check.Require(paged ? "key_pool" : "key", key_, dtype);
    check.Require(paged ? "value_pool" : "value", value_, dtype);
  }
  for (TensorView* tensor : {&query_, &key_, &value_}) {
    if (bshd_ && tensor->shape.size() == kRank) {
      std::swap(tensor->shape[kHeads], tensor->shape[kLength]);
    }
  }
  CheckShapes(check);
  if (paged) {
    key_heads_ = key_.shape[kPoolHeads];
    value_heads_ = value_.shape[kPoolHeads];
    CheckPools(check, tensors.block_table);
    ReadTable(check, tensors.block_table);
  } else {
    key_heads_ = key_.shape[kHeads];
    value_heads_ = value_.shape[kHeads];
    CheckContiguous(check);
  }
  CheckHeads(check);
  if (tensors.mask) ReadMask(check, tensors.mask);
  if (tensors.sinks) ReadSinks(check, tensors.sinks);
}

void AttentionInputs::Require(const Checker& check, bool condition, const char* what) const {
  if (condition) return;
  const auto given = [&](const TensorView& tensor) {
    Shape shape = tensor.shape;
    if (bshd_ && shape.size() == kRank) std::swap(shape[kHeads], shape[kLength]);
    return ToString(shape);
  };
  check.Fail(std::string(what) + ": query " + given(query_) + ", key " + given(key_) + ", value " +
             given(value_));
}

void AttentionInputs::CheckShapes(const Checker& check) const {
  Require(
      check,
      query_.shape.size() == kRank && key_.shape.size() == kRank && value_.shape.size() == kRank,
      "query, key and value must have rank 4");
  Require(check, query_.shape[kDim] == key_.shape[kDim],
          "query and key must have the same last size");
}

void AttentionInputs::CheckCodes(const Checker& check, const AttentionTensors& tensors) {
  const auto read = [&](const char* name, TensorView& codes, const TensorView& scales) {
    const std::string full = std::string(name) + "_codes";
    if (!codes || codes.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8) {
      check.Fail("input " + full + " is " + (codes ? TypeName(codes.type) : "absent") +
                 ", expected uint8");
    }
    check.Require((std::string(name) + "_scales").c_str(), scales, dtype_);
    Shape rows = codes.shape;
    if (rows.size() == kRank) rows[kDim] = 1;
    if (rows.size() != kRank || scales.shape != rows) {
      check.Fail("input " + full + " must have rank 4, and its scales one number for each row: " +
                 full + " " + ToString(codes.shape) + ", scales " + ToString(scales.shape));
    }
    const auto* data = static_cast<const std::uint8_t*>(codes.data);
    // Next to a size of 0, any size is possible.
    if (__builtin_mul_overflow(codes.shape[kDim], 8 / static_cast<std::int64_t>(tensors.bits),
                               &codes.shape[kDim])) {
      check.Fail("input " + full + " has rows of " + std::to_string(codes.shape[kDim]) + " bytes");
    }
    codes.data = nullptr;
    return data;
  };
  codes_.bits = tensors.bits;
  codes_.key = read("key", key_, tensors.key_scales);
  codes_.value = read("value", value_, tensors.value_scales);
  codes_.key_scales = tensors.key_scales.data;
  codes_.value_scales = tensors.value_scales.data;
}

void AttentionInputs::CheckContiguous(const Checker& check) {
  Require(check,
          query_.shape[kBatch] == key_.shape[kBatch] && key_.shape[kBatch] == value_.shape[kBatch],
          "query, key and value must have the same batch size");
  Require(check, key_.shape[kLength] == value_.shape[kLength],
          "key and value must have the same length");
  keys_ = key_.shape[kLength];
}

void AttentionInputs::CheckHeads(const Checker& check) const {
  const std::int64_t heads = query_.shape[kHeads];
  const auto divides = [&](std::int64_t n) { return n == 0 ? heads == 0 : heads % n == 0; };
  Require(check, divides(key_heads_) && divides(value_heads_),
          "the heads of query must be a multiple of those of key and of value");
}

void AttentionInputs::CheckPools(const Checker& check, const TensorView& table) {
  Require(
      check,
      key_.shape[kBlocks] == value_.shape[kBlocks] && key_.shape[kTokens] == value_.shape[kTokens],
      "the pools must have the same blocks of the same number of tokens");
  const std::int64_t tokens = key_.shape[kTokens];
  Require(check, tokens > 0 && (tokens & (tokens - 1)) == 0,
          "the number of tokens of a block must be a power of two");
  check.RequireIndex("block_table", table);
  if (table.shape.size() != 2 || table.shape[0] != query_.shape[kBatch] ||
      table.shape[1] > std::numeric_limits<std::int64_t>::max() / tokens) {
    check.Fail("input block_table of shape " + ToString(table.shape) +
               " must have the blocks of each batch row of query of shape " +
               ToString(query_.shape));
  }
  keys_ = table.shape[1] * tokens;
  blocks_.stride = static_cast<std::size_t>(table.shape[1]);
  while (std::int64_t{1} << blocks_.shift < tokens) ++blocks_.shift;
}

void AttentionInputs::ReadTable(const Checker& check, const TensorView& table) {
  table_.resize(ElementCount(table.shape));
  for (std::size_t i = 0; i < table_.size(); ++i) {
    table_[i] = ReadIndex(table.type, table.data, i);
    if (table_[i] < 0 || table_[i] >= key_.shape[kBlocks]) {
      check.Fail("element " + std::to_string(i) + " of input block_table is " +
                 std::to_string(table_[i]) + ", but key_pool has " +
                 std::to_string(key_.shape[kBlocks]) + " blocks");
    }
  }
  blocks_.table = table_.data();
}

void AttentionInputs::ReadMask(const Checker& check, const TensorView& mask) {
  const Shape scores = {query_.shape[kBatch], query_.shape[kHeads], query_.shape[kLength], keys_};
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
  const std::size_t second = bshd_ ? kLength : kHeads, third = bshd_ ? kHeads : kLength;
  return {query_.shape[kBatch], query_.shape[second], query_.shape[third], value_.shape[kDim]};
}

void AttentionInputs::Describe(AttentionProblem* problem) const {
  problem->query = query_.data;
  problem->key = key_.data;
  problem->value = value_.data;
  problem->batch = Size(query_, kBatch);
  problem->heads = Size(query_, kHeads);
  problem->blocks = blocks_;
  problem->bshd = bshd_;
  problem->codes = codes_;
  problem->key_heads = static_cast<std::size_t>(key_heads_);
  problem->value_heads = static_cast<std::size_t>(value_heads_);
  problem->queries = Size(query_, kLength);
  problem->keys = static_cast<std::size_t>(keys_);
  problem->head_dim = Size(query_, kDim);
  problem->value_dim = Size(value_, kDim);
  problem->mask = mask_;
  problem->sinks = sinks_.data();
}

}  // namespace coreai
