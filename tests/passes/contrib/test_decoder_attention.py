"""Attention over a cache as GroupQueryAttention, where the contract of the file excludes padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from coreai_onnx.model.contract import Contract
from coreai_onnx.model.metadata import MINIMUM_ONNXRUNTIME
from coreai_onnx.passes import ORDER, run_passes
from coreai_onnx.passes.analysis.attention_bodies import NAME
from coreai_onnx.passes.contrib.decoder_attention import (
    contrib_decoder_attention,
    cuda_decoder_attention,
    webgpu_decoder_attention,
)
from coreai_onnx.passes.order import CONTRIB
from tests.passes.rewriting import optimize_for, parse, run
from tests.support.tolerances import assert_close

POSITIONS = 32
GROWING = """
  keys = Concat <axis = 2> (pk, k3)  values = Concat <axis = 2> (pv, v2)
  int64[1] n0 = Shape <start = 2, end = 3> (pk)  int64[1] n3 = Shape <start = 1, end = 2> (attention_mask)"""
STATIC = """
  int64[1] n4 = Shape <start = 1, end = 2> (attention_mask)  int64[1] n0 = Sub (n4, n1)  begin = Squeeze (n0, v0)
  float[b, 2, cap, 16] keys1 = ai.coreai.kv_cache_update (pk, k3, begin)  keys = Identity (keys1)
  float[b, 2, cap, 16] values1 = ai.coreai.kv_cache_update (pv, v2, begin)  values = Identity (values1)
  int64[1] n3 = Shape <start = 2, end = 3> (pk)"""
CAUSAL = "bool[1, 1, s, {keys}] seen = LessOrEqual (l, r)"
WINDOW = """bool[1, 1, s, {keys}] le = LessOrEqual (l, r)  int64[1, 1, s, 1] edge = Sub (r, window)
  bool[1, 1, s, {keys}] near = Greater (l, edge)  bool[1, 1, s, {keys}] seen = And (le, near)"""
MASK = "bool[b, {total}] truth = Cast <to = 9> (attention_mask)  bool[b, 1, 1, {keys}] columns = Unsqueeze (truth, middle)"
PADDED = """bool[b, {total}] truth = Cast <to = 9> (attention_mask)  int64[1] free = Sub (n3, n4)
  int64[4] pads = Concat <axis = 0> (zeros, free)  bool[b, {keys}] wide = Pad (truth, pads)
  bool[b, 1, 1, {keys}] columns = Unsqueeze (wide, middle)"""
ANGLES = """int64[b, s, 1] p1 = Unsqueeze (position_ids, v2nd)  float[b, s, 1] p2 = Cast <to = 1> (p1)  float[b, s, 8] p3 = Mul (p2, f)"""
LONGEST = """int64[1, 1] p0 = ReduceMax <keepdims = 1> (position_ids)  int64[b, s] p5 = Add (position_ids, p0)
  int64[b, s, 1] p1 = Unsqueeze (p5, v2nd)  float[b, s, 1] p2 = Cast <to = 1> (p1)  float[b, s, 8] p3 = Mul (p2, f)"""
CALL = """float[b, 4, s, 16] a = ai.coreai.{name} <scale = 0.3, softcap = {softcap}, version = 1> (q3, {read}, mask)"""
# As transformers' eager attention: heads are repeated, scores and weights are products.
PRODUCTS = """
  float[b, 2, 1, {keys}, 16] k4 = Unsqueeze ({first}, v2nd)  float[b, 2, 2, {keys}, 16] k5 = Expand (k4, groups)
  float[b, 2, 1, {keys}, 16] v4 = Unsqueeze ({second}, v2nd)  float[b, 2, 2, {keys}, 16] v5 = Expand (v4, groups)
  float[b, 4, {keys}, 16] k6 = Reshape (k5, spread)  float[b, 4, {keys}, 16] v6 = Reshape (v5, spread)
  float[b, 4, 16, {keys}] k7 = Transpose <perm = [0, 1, 3, 2]> (k6)  float[b, 4, s, {keys}] m0 = MatMul (q3, k7)
  float[b, 4, s, {keys}] m = Mul (m0, scale)  float[b, 1, s, {keys}] hidden = Where (mask, nothing, lowest)
  {terms}  p = Softmax <axis = -1> (terms)  {weights}  float[b, 4, s, 16] a = MatMul (weights, v6)"""
CAPPED = """float[b, 4, s, {keys}] m1 = Div (m, cap)  float[b, 4, s, {keys}] m2 = Tanh (m1)
  float[b, 4, s, {keys}] m3 = Mul (m2, cap)  float[b, 4, s, {keys}] terms = Add (m3, hidden)"""
SINKS = """float[b, 4, s, {keys}] m1 = Add (m, hidden)  int64[4] n5 = Concat <axis = 0> (n6, v1, n1, v1)
  column = Expand (sinks, n5)  m2 = Concat <axis = 3> (m1, column)  float[b, 4, s, 1] top = ReduceMax (m2, v3)  float[b, 4, s, u] terms = Sub (m2, top)"""
BIAS = """float[{keys}] places = Cast <to = 1> (j)  float[4, 1, {keys}] bias = Mul (slopes, places)
  float[b, 4, s, {keys}] m1 = Add (m, bias)  bool[b, 1, s, {keys}] unseen = Cast <to = 9> (hidden)
  float[b, 4, s, {keys}] terms = Where (unseen, lowest, m1)"""
SLICED = "float[b, 4, s, {keys}] weights = Slice (p, v0, end, v3, v1)"
WRITTEN = {"call": PRODUCTS, "weights": "weights = Identity (p)"}
TEXT = """main (int64[b, s] input_ids, int64[b, {total}] attention_mask, int64[b, s] position_ids, float[b, s, 64] x, float[b, s, 32] k,
    float[b, s, 32] v, float[b, 2, {past}, 16] pk, float[b, 2, {past}, 16] pv)
  => (float[b, s, 64] y, float[b, 2, {keys}, 16] keys, float[b, 2, {keys}, 16] values)
  <int64 zero = {{0}}, int64 one = {{1}}, int64[1] v0 = {{0}}, int64[1] v2nd = {{2}}, int64[1] v1 = {{1}}, int64[3] around = {{0, 1, 3}},
   int64[3] lead = {{0, 1, 2}}, int64[2] middle = {{1, 2}}, int64 window = {{3}}, int64[3] zeros = {{0, 0, 0}},
   int64[4] four = {{0, 0, 4, 16}}, int64[4] two = {{0, 0, 2, 16}}, int64[3] row = {{0, 0, 64}},
   int64[5] groups = {{1, 1, 2, 1, 1}}, int64[4] spread = {{0, 4, -1, 16}}, int64[1] v3 = {{3}}, int64[1] end = {{-1}},
   float nothing = {{0.0}}, float lowest = {{-3.4028234663852886e38}}, float scale = {{0.3}}, float cap = {{5.0}},
   float[1, 4, 1, 1] sinks = {{1.0, -2.0, 0.5, 3.0}}, float[4, 1, 1] slopes = {{-0.5, -0.1, -0.02, -0.3}},
   float[8] f = {{1.0, 0.5, 0.25, 0.125, 0.0625, 0.03, 0.02, 0.01}}> {{
  float[b, s, 4, 16] q1 = Reshape (x, four)  float[b, 4, s, 16] q2 = Transpose <perm = [0, 2, 1, 3]> (q1)
  float[b, s, 2, 16] k1 = Reshape (k, two)  float[b, 2, s, 16] k2 = Transpose <perm = [0, 2, 1, 3]> (k1)
  float[b, s, 2, 16] v1st = Reshape (v, two)  float[b, 2, s, 16] v2 = Transpose <perm = [0, 2, 1, 3]> (v1st)
  {angles}
  float[b, s, 8] c1 = Cos (p3)  float[b, 1, s, 8] c = Unsqueeze (c1, v1)  float[b, s, 8] d1 = Sin (p3)  float[b, 1, s, 8] d = Unsqueeze (d1, v1)
  float[b, 4, s, 16] q3 = ai.coreai.rope <dims = 0, interleaved = {interleaved}> (q2, c, d)
  float[b, 2, s, 16] k3 = ai.coreai.rope <dims = 0, interleaved = {interleaved}> (k2, c, {sines})
  int64[1] n1 = Shape <start = 1, end = 2> (input_ids)  int64[1] n6 = Shape <start = 0, end = 1> (input_ids)  {cache}
  past = Squeeze (n0, v0)  new = Squeeze (n1, v0)  all = Squeeze (n3, v0)
  int64[s] i = Range (zero, new, one)  int64[s] i2 = Add (i, past)  int64[{keys}] j = Range (zero, all, one)
  int64[1, 1, s, 1] r = Unsqueeze (i2, around)  int64[1, 1, 1, {keys}] l = Unsqueeze (j, lead)
  {causal}  {columns}
  bool[b, 1, s, {keys}] mask = And (seen, columns)
  {call}
  float[b, s, 4, 16] t = Transpose <perm = [0, 2, 1, 3]> (a)  y = Reshape (t, row)
}}
<domain: "ai.coreai", opset_import: ["": 23]>
rope <dims, interleaved> (input, cos, sin) => (output) {{
  half = Constant <value_ints = [1]> ()  e = Squeeze (cos, half)  f = Squeeze (sin, half)
  output = RotaryEmbedding <interleaved: int = @interleaved> (input, e, f)
}}
<domain: "ai.coreai", opset_import: ["": 23]>
kv_cache_update (cache, update, begin) => (output) {{
  o = Constant <value_ints = [0]> ()  axis = Constant <value_ints = [2]> ()  far = Constant <value_ints = [1000]> ()
  w = Unsqueeze (begin, o)  n = Shape <start = 2, end = 3> (update)  e = Add (w, n)
  before = Slice (cache, o, w, axis)  after = Slice (cache, e, far, axis)  output = Concat <axis = 2> (before, update, after)
}}
<domain: "ai.coreai", opset_import: ["": 23]>
{name} <scale: float, softcap: float> (query, key, value, mask) => (output) {{
  output = Attention <scale: float = @scale, softcap: float = @softcap> (query, key, value, mask)
}}"""
DIMS = {
    "growing": {"total": "T", "keys": "T", "past": "p", "cache": GROWING, "columns": MASK},
    "static": {"total": "t", "keys": "cap", "past": "cap", "cache": STATIC, "columns": PADDED},
}
USUAL = {"causal": CAUSAL, "angles": ANGLES, "interleaved": 0, "softcap": 0.0, "sines": "d", "name": NAME, "call": CALL, "weights": "", "terms": ""}  # fmt: skip


def model(
    cache: str = "growing", contract: Contract | None = None, text: str = TEXT, **change: Any
) -> ir.Model:
    """``p + s`` cannot be written in ONNX's text form."""
    first, second = ("keys", "values") if cache == "growing" else ("keys1", "values1")
    read = {"read": f"{first}, {second}", "first": first, "second": second}
    parts = {**DIMS[cache], **USUAL, **read, **change}
    for _ in range(2):  # a part may have parts
        parts = {n: x.format(**parts) if isinstance(x, str) else x for n, x in parts.items()}
    text = text.format(**parts)
    proto = ir.to_proto(parse(text))
    for node in proto.graph.node:
        node.name = node.output[0]
    for info in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param == "T":
                dim.dim_param = "p + s"
    made = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    (contract or Contract("none", cache, POSITIONS)).write(made.metadata_props)
    return made


def feeds(batch: int, length: int, past: int, capacity: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {
        "x": (batch, length, 64),
        "k": (batch, length, 32),
        "v": (batch, length, 32),
        "pk": (batch, 2, capacity or past, 16),
        "pv": (batch, 2, capacity or past, 16),
    }
    floats = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    return floats | {
        "input_ids": np.ones((batch, length), np.int64),
        "attention_mask": np.ones((batch, past + length), np.int64),
        "position_ids": np.tile(np.arange(past, past + length), (batch, 1)),
    }


def ops(made: ir.Model) -> list[str]:
    return [node.op_type for node in made.graph]


@pytest.mark.parametrize("cache", ["growing", "static"])
@pytest.mark.parametrize(
    ("change", "attributes"),
    [
        ({}, {}),
        ({"causal": WINDOW}, {"local_window_size": 3}),
        ({"softcap": 5.0}, {"softcap": 5.0}),
        ({"interleaved": 1}, {"rotary_interleaved": 1}),
        ({**WRITTEN, "terms": CAPPED, "causal": WINDOW}, {"softcap": 5.0, "local_window_size": 3}),
        ({**WRITTEN, "terms": SINKS, "weights": SLICED}, {}),
    ],
)
def test_prefill_and_steps(cache: str, change: dict[str, Any], attributes: dict[str, Any]) -> None:
    changed = model(cache, **change)
    report = run_passes(changed, [*ORDER, *CONTRIB, *ORDER])
    assert report.counts["contrib_decoder_attention"] == 1
    left = {"Concat", "Transpose", "LessOrEqual", "And", "rope", "Cos", "kv_cache_update"}
    assert not left & set(ops(changed))
    (node,) = (node for node in changed.graph if node.op_type == "GroupQueryAttention")
    found = {name: attribute.value for name, attribute in node.attributes.items()}
    usual = {"do_rotary": 1, "num_heads": 4, "kv_num_heads": 2, "rotary_interleaved": 0}
    assert found == {**usual, "scale": pytest.approx(0.3), **attributes}
    # A prompt, a step, several tokens after others, batches.
    for sizes in ((1, 6, 0), (2, 5, 0), (1, 1, 7), (3, 1, 7), (1, 4, 5)):
        given = feeds(*sizes, capacity=0 if cache == "growing" else 14)
        total = given["attention_mask"].shape[1]
        results, expected = run(changed, given), run(model(cache, **change), given)
        assert_close(results[0], expected[0])
        # What no token has been written to has no meaning: the op does not copy it.
        for mine, its in zip(results[1:], expected[1:], strict=True):
            assert mine.shape == its.shape
            assert_close(mine[:, :, :total], its[:, :, :total])
    again = ir.from_proto(ir.to_proto(changed))
    assert run_passes(again, [*ORDER, *CONTRIB]).total == 0


def test_biases_of_positions() -> None:
    written = {**WRITTEN, "terms": BIAS}
    changed = model(**written)
    run_passes(changed, [*ORDER, *CONTRIB, *ORDER])
    (node,) = (node for node in changed.graph if node.op_type == "GroupQueryAttention")
    assert len(node.inputs) == 11
    assert not {"Softmax", "MatMul", "Where"} & set(ops(changed))
    for sizes in ((1, 6, 0), (2, 5, 0), (3, 1, 7), (1, 4, 5)):
        assert_close(run(changed, feeds(*sizes)), run(model(**written), feeds(*sizes)))


@pytest.mark.parametrize("change", [{"angles": LONGEST}, {"sines": "c"}])
def test_rotations_that_stay(change: dict[str, Any]) -> None:
    """Angles that depend on the length of the text, and other ones for queries than for keys."""
    changed = model(**change)
    assert run_passes(changed, [*ORDER, contrib_decoder_attention, *ORDER]).total
    assert ops(changed).count("rope") == 2
    assert ops(changed).count("GroupQueryAttention") == 1
    for sizes in ((2, 5, 0), (3, 1, 7)):
        assert_close(run(changed, feeds(*sizes)), run(model(**change), feeds(*sizes)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"contract": Contract("left", "growing", POSITIONS)}, "allows padding on the left"),
        ({"causal": CAUSAL.replace("LessOrEqual", "Less")}, "the mask is not known to be causal"),
        ({"causal": CAUSAL.replace("(l, r)", "(r, l)")}, "the mask is not known to be causal"),
        ({"columns": "bool[b, 1, 1, {keys}] columns = ai.coreai.hidden (attention_mask)"},
         "the mask is not known to be causal"),
        ({"cache": "static", **WRITTEN, "terms": BIAS}, "a bias has columns for a cache of a fixed capacity"),
        ({**WRITTEN, "terms": SINKS, "weights": SLICED.replace("end", "v3")}, "columns that are not known to be sinks"),
        ({**WRITTEN, "terms": "float[b, 4, s, {keys}] terms = Exp (m)"}, "the scores are not a product of queries and transposed keys"),
        ({**WRITTEN, "terms": CAPPED, "weights": "weights = Exp (p)"}, "the weights are not read by a product with the values alone"),
    ],
)  # fmt: skip
def test_attention_that_stays(change: dict[str, Any], reason: str) -> None:
    changed = model(**change)
    report = run_passes(changed, [*ORDER, contrib_decoder_attention])
    assert "GroupQueryAttention" not in ops(changed)
    assert any(reason in miss.miss.reason for miss in report.near_misses)


@pytest.mark.parametrize("cache", ["growing", "static"])
@pytest.mark.parametrize("change", [{}, {"causal": WINDOW}, {"interleaved": 1}])
def test_files_for_webgpu(cache: str, change: dict[str, Any]) -> None:
    changed = model(cache, **change)
    optimize_for(changed, "webgpu")
    assert not changed.functions
    assert ops(changed).count("GroupQueryAttention") == 1
    # The angles are a table, and nothing is left of their computation.
    assert not {"Sin", "Cos", "Floor", "Softmax", "Concat"} & set(ops(changed))
    for sizes in ((1, 6, 0), (2, 5, 0), (3, 1, 7)):
        given = feeds(*sizes, capacity=0 if cache == "growing" else 14)
        total = given["attention_mask"].shape[1]
        results, expected = run(changed, given), run(model(cache, **change), given)
        assert_close(results[0], expected[0])
        for mine, its in zip(results[1:], expected[1:], strict=True):
            assert_close(mine[:, :, :total], its[:, :, :total])
    again = ir.from_proto(ir.to_proto(changed))
    assert optimize_for(again, "webgpu").total == 0


def test_sines_of_rotations_that_stay_are_exact() -> None:
    changed = model(angles=LONGEST)
    optimize_for(changed, "webgpu")
    assert ops(changed).count("GroupQueryAttention") == 1
    assert not {"Sin", "Cos"} & set(ops(changed))
    for sizes in ((2, 5, 0), (3, 1, 7)):
        assert_close(run(changed, feeds(*sizes)), run(model(angles=LONGEST), feeds(*sizes)))


def test_cuda_computes_float16_only() -> None:
    changed = model()
    report = run_passes(changed, [*ORDER, cuda_decoder_attention])
    assert {miss.miss.reason for miss in report.near_misses} >= {"the dtype is not float16"}
    narrow = TEXT.replace("float[", "float16[")
    for constant in ("[1, 4, 1, 1] sinks", "[4, 1, 1] slopes", "[8] f"):
        narrow = narrow.replace(f"float16{constant}", f"float{constant}")
    angles = """int64[b, s, 1] p1 = Unsqueeze (position_ids, v2nd)  float16[b, s, 1] p2 = Cast <to = 10> (p1)
      float16[8] g = Cast <to = 10> (f)  float16[b, s, 8] p3 = Mul (p2, g)"""
    half = model(text=narrow, angles=angles)
    assert run_passes(half, [*ORDER, cuda_decoder_attention]).counts["cuda_decoder_attention"] == 1
    assert "GroupQueryAttention" in ops(half)


def test_webgpu_ignores_a_soft_cap() -> None:
    changed = model(softcap=5.0)
    report = run_passes(changed, [*ORDER, webgpu_decoder_attention])
    assert "GroupQueryAttention" not in ops(changed)
    assert "the kernel has no soft cap" in {miss.miss.reason for miss in report.near_misses}


def test_a_window_needs_the_release_that_counts_the_query() -> None:
    changed = model(causal=WINDOW)
    changed.metadata_props[MINIMUM_ONNXRUNTIME] = "1.23"
    report = run_passes(changed, [*ORDER, contrib_decoder_attention])
    assert "GroupQueryAttention" not in ops(changed)
    reasons = {miss.miss.reason for miss in report.near_misses}
    assert "a window, a bias or sinks need onnxruntime 1.24" in reasons


def test_a_file_without_a_contract_is_not_changed() -> None:
    changed = model()
    changed.metadata_props.clear()
    report = run_passes(changed, [*ORDER, contrib_decoder_attention])
    assert not report.counts["contrib_decoder_attention"]
    assert all(miss.pass_name != "contrib_decoder_attention" for miss in report.near_misses)
