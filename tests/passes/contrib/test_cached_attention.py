from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from coreai_onnx.passes import ORDER
from coreai_onnx.passes.analysis.attention_bodies import NAME
from coreai_onnx.passes.contrib.attention_calls import contrib_cached_attention
from coreai_onnx.passes.contrib.rope import contrib_rope
from tests.passes.rewriting import leaves, parse, run, run_passes
from tests.support.tolerances import assert_close

HEAD = """main (float[b, s, 64] x, float[b, s, 32] k, float[b, s, 32] v, float[b, 2, p, 16] pk, float[b, 2, p, 16] pv, float[1, 1, s, 8] c{extra})
  => (float[b, s, 64] y, float[b, 2, p + s, 16] keys, float[b, 2, p + s, 16] values)
  <int64 zero = {{0}}, int64 one = {{1}}, int64[1] v0 = {{0}}, int64[3] around = {{0, 1, 3}}, int64[3] lead = {{0, 1, 2}},
   int64[4] four = {{0, 0, 4, 16}}, int64[4] two = {{0, 0, 2, 16}}, int64[3] row = {{0, 0, 64}}> {{"""
BODY = """
  float[b, s, 4, 16] q1 = Reshape (x, four)  float[b, 4, s, 16] q2 = Transpose <perm = [0, 2, 1, 3]> (q1)
  float[b, s, 2, 16] k1 = Reshape (k, two)  float[b, 2, s, 16] k2 = Transpose <perm = [0, 2, 1, 3]> (k1)
  float[b, s, 2, 16] v1 = Reshape (v, two)  float[b, 2, s, 16] v2 = Transpose <perm = [0, 2, 1, 3]> (v1)
  float[b, 4, s, 16] q3 = ai.coreai.rope <dims = 0, interleaved = 0> (q2, c, c)
  float[b, 2, s, 16] k3 = ai.coreai.rope <dims = 0, interleaved = 0> (k2, c, c)
  keys = Concat <axis = 2> (pk, k3)  values = Concat <axis = {axis}> (pv, v2)
  {mask}
  float[b, 4, s, 16] a = ai.coreai.{name} <scale = 0.5, is_causal = {causal}, softcap = {softcap}, version = 1> (q3, keys, values{masked})
  float[b, s, 4, 16] t = Transpose <perm = [0, 2, 1, 3]> (a)  y = Reshape (t, row)
}}
<domain: "ai.coreai", opset_import: ["": {opset}]>
rope <dims, interleaved> (input, cos, sin) => (output) {{
  half = Constant <value_ints = [1]> ()  b = Shape <start = 0, end = 1> (input)  o = Constant <value_ints = [1, 1, 1]> ()
  d = Concat <axis = 0> (b, o)  e = Expand (cos, d)  f = Squeeze (e, half)  output = RotaryEmbedding (input, f, f)
}}
<domain: "ai.coreai", opset_import: ["": {opset}]>
{name} <scale: float> (query, key, value, mask) => (output) {{ output = Attention <scale: float = @scale> (query, key, value, mask) }}"""
RAMPS = """int64[1] n = Shape <start = 1, end = 2> (x)  m = Squeeze (n, v0)  int64[s] i = Range (zero, m, one)
  int64[1] n2 = Shape <start = 2, end = 3> (pk)  m2 = Squeeze (n2, v0)  int64[s] i2 = Add (i, m2)
  int64[1] n3 = Add (n, n2)  m3 = Squeeze (n3, v0)  int64[p + s] j = Range (zero, m3, one)
  int64[1, 1, s, 1] r = Unsqueeze (i2, around)  int64[1, 1, 1, p + s] l = Unsqueeze (j, lead)  bool[1, 1, s, p + s] mask = LessOrEqual (l, r)"""
PLAIN = {"extra": "", "axis": 2, "mask": RAMPS, "causal": 0, "softcap": 0.0, "masked": ", mask", "opset": 23, "name": NAME}  # fmt: skip


def model(**change: object) -> ir.Model:
    """``p + s`` cannot be written in ONNX's text form."""
    text = (HEAD + BODY).format(**{**PLAIN, **change}).replace("p + s", "total")
    made = parse(text, int(change.get("opset", 23)))
    proto = ir.to_proto(made)
    for info in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param == "total":
                dim.dim_param = "p + s"
    return ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))


def feeds(batch: int, length: int, past: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {
        "x": (batch, length, 64),
        "k": (batch, length, 32),
        "v": (batch, length, 32),
        "pk": (batch, 2, past, 16),
        "pv": (batch, 2, past, 16),
        "c": (1, 1, length, 8),
    }
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


@pytest.mark.parametrize("before", [(), (contrib_rope,)], ids=["rope", "rotary"])
def test_attention_joins_the_cache(before) -> None:
    changed = model()
    run_passes(changed, [*before])
    report = run_passes(changed, [*ORDER, contrib_cached_attention, *ORDER])
    assert report.counts["contrib_cached_attention"] == 1
    ops = [node.op_type for node in changed.graph]
    assert ops.count("Attention") == 1
    assert ops.count("RotaryEmbedding") == 2
    assert not {"Concat", "Transpose", "LessOrEqual"} & set(ops)
    for sizes in ((2, 3, 5), (1, 1, 4), (2, 4, 0)):
        assert_close(run(changed, feeds(*sizes)), run(model(), feeds(*sizes)))
    again = ir.from_proto(ir.to_proto(changed))
    assert run_passes(again, [*ORDER, contrib_cached_attention]).total == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mask": RAMPS.replace("LessOrEqual", "Less")}, "the mask is not known to be causal"),
        ({"extra": ", bool[b, 1, s, p + s] mask", "mask": ""}, "the mask is not known to be causal"),
        ({"softcap": 2.0}, "there is a soft cap or a window"),
        ({"opset": 21, "causal": 1, "mask": "", "masked": ""}, "the opset has no Attention"),
        ({"axis": -1}, None),
    ],
)  # fmt: skip
def test_others_stay(change: dict[str, object], reason: str | None) -> None:
    kept = model(**change)
    report = run_passes(kept, [contrib_cached_attention])
    assert report.total == 0
    assert [m.miss.reason for m in report.near_misses] == ([] if reason is None else [reason])


def test_keys_that_something_else_reads_stay() -> None:
    text = (HEAD + BODY).format(**PLAIN).replace("p + s", "total")
    text = text.replace("float[b, s, 64] y,", "float[b, s, 64] y, float[b, 2, total, 16] z,")
    leaves(
        text.replace("y = Reshape (t, row)", "y = Reshape (t, row)  z = Neg (keys)"),
        contrib_cached_attention,
    )
