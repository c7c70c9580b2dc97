"""Valid models that the file fuzzer changes: small, and with every kind of thing a file may hold."""

from __future__ import annotations

import functools

import onnx
import onnx_ir as ir

from coreai_onnx.model.provenance.debug_info import written_as
from tests.support.small_models import (
    add_model,
    cache_model,
    counter_model,
    layers_model,
    linear_model,
)

DATA = bytes(4096)
"""The data file ``data`` beside every model."""

_TEXTS = (
    """<ir_version: 10, opset_import: ["": 21, "f": 1]>
    g (float[n, 4] x, bool c) => (float[n, 4] y) {
      a = If<then_branch = t () => (float[n, 4] p) <float[1] w = {1.0}> { p = Add(x, w) },
             else_branch = e () => (float[n, 4] q) { q = Relu(x) }>(c)
      y = f.f(a, c) }
    <domain: "f", opset_import: ["": 21]>
    f (x, c) => (y) {
      k = Constant<value = float[1] {2.0}>()
      y = If<then_branch = t () => (float[n, 4] p) { p = Mul(x, k) },
             else_branch = e () => (float[n, 4] q) { q = Neg(x) }>(c) }""",
    """<ir_version: 8, opset_import: ["": 9]>
    g (float[2, 4] x) => (float[2, 4] y) {
      a = Slice<starts = [0], ends = [9], axes = [1]>(x)
      b = Unsqueeze<axes = [0]>(a)  c = Squeeze<axes = [0]>(b)
      d = Clip<min = 0.0, max = 6.0>(c)  e = Dropout(d)  y = Softmax<axis = 1>(e) }""",
    """<ir_version: 10, opset_import: ["": 21]>
    g (float[batch, 8] x) => (float[batch, 8] y)
    <int64[1] start = {0}, int64[1] end = {4}, int64[1] axis = {1}, int64[1] last = {8},
     float half = {0.5}, int64[2] shape = {-1, 8}, int64[2] twice = {1, 1}> {
      a = Slice(x, start, end, axis)  b = Slice(x, end, last, axis)
      c = Sigmoid(a)  d = Mul(a, c)  e = Mul(d, b)  f = Concat<axis = 1>(e, b)
      g1 = Reshape(f, shape)  h = Cast<to = 10>(g1)  i = Cast<to = 1>(h)
      j = Transpose<perm = [1, 0]>(i)  k = Transpose<perm = [1, 0]>(j)
      l = Mul(k, half)  m = Expand(l, twice)  n = Shape(m)  o = Reshape(m, n)
      w0 = Greater(o, half)  z = Where(w0, o, l)
      s, t = Split<axis = 1, num_outputs = 2>(z)  u = Gelu(s)  v = Mul(u, t)
      y = Concat<axis = 1>(v, v) }""",
    """<ir_version: 10, opset_import: ["": 21]>
    g (float[b, 8] x, float[8] w) => (float[b, 8] y)
    <float two = {2.0}, float eps = {0.00001}, int64[1] last = {-1}> {
      p = Pow(x, two)  m = ReduceMean(p, last)  e = Add(m, eps)  r = Sqrt(e)
      q = Div(x, r)  y = Mul(q, w) }""",
    """<ir_version: 10, opset_import: ["": 21]>
    g (float[2, 3] x, int64 n, bool c) => (float[2, 3] y) {
      s = SequenceConstruct(x, x)  z = Constant<value = int64 {0}>()  a = SequenceAt(s, z)
      y, k = Loop<body = b (int64 i, bool go, float[2, 3] v) => (bool on, float[2, 3] u, float[2, 3] o)
        { on = Identity(go)  u = Add(v, a)  o = Neg(u) }>(n, c, x) }""",
    """<ir_version: 10, opset_import: ["": 21]>
    g (uint8[4, 4] x) => (float[4, 4] y)
    <float scale = {0.1}, uint8 zero = {3}> {
      d = DequantizeLinear(x, scale, zero)  q = QuantizeLinear(d, scale, zero)
      y = DequantizeLinear(q, scale, zero) }""",
    """<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1]>
    g (float[1, 2, s, 8] q, float[1, 2, s, 8] k, float[1, 2, s, 8] v, float[8] w) => (float[1, 2, s, 8] y) {
      a = ai.coreai.scaled_dot_product_attention <is_causal = 1> (q, k, v)
      b = ai.coreai.rms_norm <eps = 0.00001> (a, w)
      c = Attention(q, k, v)  d = Add(b, c)
      y = ai.coreai.silu (d) }
    <domain: "ai.coreai", opset_import: ["": 23]>
    silu (x) => (y) { s = Sigmoid(x)  y = Mul(x, s) }""",
    """<ir_version: 10, opset_import: ["": 18]>
    g (float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y)
    <float[4] one = {1.0, 1.0, 1.0, 1.0}, float[4] none = {0.0, 0.0, 0.0, 0.0}> {
      ks = Constant<value_ints = [4, 3, 1, 1]>()  k = ConstantOfShape<value = float[1] {0.1}>(ks)
      c = Conv(x, k)  y = BatchNormalization(c, one, none, none, one) }""",
)  # fmt: skip


@functools.cache
def seeds() -> tuple[onnx.ModelProto, ...]:
    """Every model; callers copy what they change."""
    layers = layers_model()
    with written_as(layers, "compact"):
        marked = ir.to_proto(layers)
    made = (
        linear_model(),
        add_model({"batch": {"min": 1, "max": 8}}),
        counter_model(),
        cache_model(),
        layers_model(),
    )
    protos = [onnx.parser.parse_model(text) for text in _TEXTS]
    return (*protos, marked, *(ir.to_proto(model) for model in made), _sparse())


def _sparse() -> onnx.ModelProto:
    """A model with a sparse tensor, weights in a data file, types and quantization annotations."""
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[4] x, optional(float[4]) o, seq(float[4]) s) => (float[4] y)
    { a = Add(x, w)  y = Mul(a, v) }""")
    for name, offset in (("w", 0), ("v", 64)):
        tensor = proto.graph.initializer.add(name=name, data_type=1, dims=[4])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "data"), ("offset", str(offset)), ("length", "16")):
            tensor.external_data.add(key=key, value=value)
    annotation = proto.graph.quantization_annotation.add(tensor_name="w")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="v")
    node = proto.graph.node[0]
    node.metadata_props.add(key="coreai.scope", value="layers.0")
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("a", 1, ["n"]))
    proto.metadata_props.add(key="mine", value="kept")
    return proto
