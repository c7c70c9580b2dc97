#include "fuzz/expected_attention.h"

#include <algorithm>
#include <cmath>

#include "fuzz/array.h"
#include "fuzz/expected_few_bits.h"
#include "reference/attention.h"

namespace coreai::fuzz {
namespace {

void ReadMask(const Call& call, const OrtKernelContext& context, std::size_t input,
              testing::AttentionCase* c) {
  const Array& mask = call.In(input);
  if (!mask.present) return;
  Shape scores;
  for (const std::size_t size : {c->batch, c->heads, c->queries, c->keys}) {
    scores.push_back(static_cast<std::int64_t>(size));
  }
  const Array all = BroadcastTo(mask, scores);
  if (context.inputs[input]->info.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL) {
    for (const double x : all.data) c->bool_mask.push_back(x != 0 ? 1 : 0);
  } else {
    c->float_mask = all.data;
  }
}

// [batch, length, heads, dim] as [batch, heads, length, dim], and the other way round.
Array Turned(const Array& x) {
  const std::size_t rows = x.count(1), columns = x.count(2), dim = x.count(3);
  Array y = {{x.size(0), x.size(2), x.size(1), x.size(3)}, x.data, true};
  for (std::size_t i = 0; i < x.data.size(); ++i) {
    const std::size_t row = i / dim / columns % rows, outer = i / dim / columns / rows;
    y.data[((outer * columns + i / dim % columns) * rows + row) * dim + i % dim] = x.data[i];
  }
  return y;
}

Arrays Attend(const Call& call, const OrtKernelContext& context, const Array& query,
              const Array& key, const Array& value, std::size_t mask) {
  testing::AttentionCase c;
  c.batch = query.count(0), c.heads = query.count(1), c.key_heads = key.count(1);
  c.value_heads = value.count(1), c.queries = query.count(2), c.keys = key.count(2);
  c.head_dim = query.count(3), c.value_dim = value.count(3);
  c.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  c.scale =
      std::holds_alternative<float>(call.info.Get("scale")) ? call.Float("scale", 0) : c.scale;
  c.softcap = call.Float("softcap", 0);
  c.causal = call.Int("is_causal", 0) != 0;
  c.window = std::min<std::int64_t>(call.Int("window_size", 0), 1 << 30);
  if (call.Text("causal_alignment", "lower_right") == "lower_right") {
    c.offset = key.size(2) - query.size(2);
  }
  c.query = query.data, c.key = key.data, c.value = value.data, c.sinks = call.In(mask + 1).data;
  ReadMask(call, context, mask, &c);
  return {{{query.size(0), query.size(1), query.size(2), value.size(3)},
           testing::AttentionReference(c),
           true}};
}

Arrays Attention(const Call& call, const OrtKernelContext& context) {
  return Attend(call, context, call.In(0), call.In(1), call.In(2), 3);
}

Arrays BshdAttention(const Call& call, const OrtKernelContext& context) {
  const Array query = Turned(call.In(0)), key = Turned(call.In(1)), value = Turned(call.In(2));
  return {Turned(Attend(call, context, query, key, value, 3).front())};
}

Arrays AttentionNbits(const Call& call, const OrtKernelContext& context) {
  const std::int64_t bits = call.Int("bits", 8);
  return Attend(call, context, call.In(0), Dequantized(call.In(1), call.In(2), bits),
                Dequantized(call.In(3), call.In(4), bits), 5);
}

// Keys or values of each row of a table, [batch, heads, keys, dim].
Array Collected(const Array& pool, const Array& table) {
  const std::size_t tokens = pool.count(1), heads = pool.count(2), dim = pool.count(3);
  const std::size_t width = table.count(1);
  Array rows = {
      {table.size(0), pool.size(2), table.size(1) * pool.size(1), pool.size(3)}, {}, true};
  for (std::size_t b = 0; b < table.count(0); ++b)
    for (std::size_t h = 0; h < heads; ++h)
      for (std::size_t i = 0; i < width * tokens; ++i) {
        const auto block = static_cast<std::size_t>(table.data[b * width + i / tokens]);
        for (std::size_t d = 0; d < dim; ++d) {
          rows.data.push_back(pool.data[((block * tokens + i % tokens) * heads + h) * dim + d]);
        }
      }
  return rows;
}

Arrays PagedAttention(const Call& call, const OrtKernelContext& context) {
  const Array& table = call.In(3);
  return Attend(call, context, call.In(0), Collected(call.In(1), table),
                Collected(call.In(2), table), 4);
}

Arrays PagedAttentionNbits(const Call& call, const OrtKernelContext& context) {
  const std::int64_t bits = call.Int("bits", 8);
  const Array& table = call.In(5);
  const Array key = Dequantized(call.In(1), call.In(2), bits);
  const Array value = Dequantized(call.In(3), call.In(4), bits);
  return Attend(call, context, call.In(0), Collected(key, table), Collected(value, table), 6);
}

}  // namespace

Arrays AnyAttention(const std::string& op, const Call& call, const OrtKernelContext& context) {
  if (op == "attention_nbits") return AttentionNbits(call, context);
  if (op == "paged_attention") return PagedAttention(call, context);
  if (op == "paged_attention_nbits") return PagedAttentionNbits(call, context);
  if (op == "scaled_dot_product_attention_bshd") return BshdAttention(call, context);
  return Attention(call, context);
}

}  // namespace coreai::fuzz
