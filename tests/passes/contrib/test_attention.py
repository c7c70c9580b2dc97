from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

from coreai_onnx.composites.attention import scaled_dot_product_attention
from coreai_onnx.passes import ORDER
from coreai_onnx.passes.contrib.attention import contrib_attention
from coreai_onnx.passes.contrib.attention_calls import contrib_open_attention
from tests.passes.rewriting import leaves, parse, run, run_passes
from tests.support.tolerances import assert_close

NAME = "scaled_dot_product_attention"
HEAD = "main (float[b, 4, {t}, {w}] q, float[b, {k}, s, {w}] k, float[b, {k}, s, {d}] v, {kind}[{rows}, 1, {t}, s] m) => (float[b, 4, {t}, {d}] y)"
CALL = " {{ y = ai.coreai.{name} <scale = 0.5, is_causal = {causal}, window_size = {window}, softcap = 0.0, version = 1> ({inputs}) }}"
MASKED = """
<domain: "ai.coreai", opset_import: ["": 23]>
{name} <scale: float> (query, key, value, mask) => (output) {{
  a = Attention <scale: float = @scale> (query, key, value, mask)
  last = Constant <value_ints = [-1]> ()  zero = Constant <value_float = 0.0> ()  low = Constant <value = float {{{low}}}> ()
  f = Cast <to = 1> (mask)  r = ReduceMax (f, last)  some = Greater (r, low)  output = Where (some, a, zero)
}}"""
OPEN = """
<domain: "ai.coreai", opset_import: ["": 23]>
{name} <scale: float, is_causal: int> (query, key, value) => (output) {{ output = Attention <scale: float = @scale, is_causal: int = @is_causal> (query, key, value) }}"""
PLAIN = {"t": "s", "k": "4", "w": 8, "d": 8, "kind": "bool", "rows": "b", "causal": 0, "window": 0, "low": 0, "name": NAME}  # fmt: skip


def text(*, mask: bool, **change: object) -> str:
    names = {**PLAIN, "inputs": "q, k, v, m" if mask else "q, k, v", **change}
    return (HEAD + CALL + (MASKED if mask else OPEN)).format(**names)


@pytest.mark.parametrize(
    ("mask", "change", "op"),
    [
        (False, {}, "Attention"),
        (False, {"t": "t", "d": 4}, "Attention"),
        (False, {"causal": 1}, "Attention"),
        (True, {}, "Attention"),
        (True, {"rows": "1", "t": "t"}, "Attention"),
        (True, {"kind": "float", "low": -1e30}, "Attention"),
        (False, {"k": "2", "causal": 1}, "GroupQueryAttention"),
    ],
)
def test_attention_is_onnxruntimes(mask: bool, change: dict[str, object], op: str) -> None:
    written = text(mask=mask, **change)
    model = parse(written)
    assert run_passes(model, [contrib_attention]).total == 1
    ops = [node.op_type for node in model.graph]
    assert op in ops
    assert ("Where" in ops) == mask
    names = {**PLAIN, **change}
    rng = np.random.default_rng(0)
    length = 3 if names["t"] == "t" else 5
    rows = 1 if names["rows"] == "1" else 2
    feeds = {
        "q": rng.standard_normal((2, 4, length, 8)).astype(np.float32),
        "k": rng.standard_normal((2, int(names["k"]), 5, 8)).astype(np.float32),
        "v": rng.standard_normal((2, int(names["k"]), 5, names["d"])).astype(np.float32),
        "m": rng.random((rows, 1, length, 5)) > 0.4,
    }
    feeds["m"][0, 0, 0] = False  # a row without a key
    if names["kind"] == "float":
        feeds["m"] = np.where(feeds["m"], 0, -np.inf).astype(np.float32)
    assert_close(run(model, feeds), run(parse(written), feeds))
    again = ir.from_proto(ir.to_proto(model))
    assert run_passes(again, [contrib_attention]).total == 0


@pytest.mark.parametrize(
    ("mask", "change", "reason"),
    [
        (False, {"window": 2}, "there is a soft cap or a window"),
        (False, {"k": "2"}, "grouped heads that are not causal need onnxruntime 1.30"),
        (False, {"t": "t", "k": "2"}, "there may be more keys than queries"),
        (False, {"t": "t", "causal": 1}, "there may be more keys than queries"),
        (False, {"k": "2", "d": 4}, "values must have the size of the keys"),
        (True, {"rows": "c"}, "the mask must have a row for each query and a column for each key"),
        (False, {"k": "2", "w": 12, "d": 12}, "head_dim must be a multiple of 8"),
    ],
)
def test_others_stay(mask: bool, change: dict[str, object], reason: str) -> None:
    leaves(text(mask=mask, **change), contrib_attention, reason)


def test_rotations_go_inside_and_layouts_cancel() -> None:
    written = f"""main (float[b, s, 64] x, float[b, s, 32] z, float[b, s, 32] w, float[1, 1, s, 8] c) => (float[b, s, 64] y)
      <int64[4] hq = {{0, 0, 4, 16}}, int64[4] hk = {{0, 0, 2, 16}}, int64[3] row = {{0, 0, 64}}> {{
      float[b, s, 4, 16] q1 = Reshape (x, hq)  float[b, 4, s, 16] q2 = Transpose <perm = [0, 2, 1, 3]> (q1)
      float[b, s, 2, 16] k1 = Reshape (z, hk)  float[b, 2, s, 16] k2 = Transpose <perm = [0, 2, 1, 3]> (k1)
      float[b, s, 2, 16] v1 = Reshape (w, hk)  float[b, 2, s, 16] v2 = Transpose <perm = [0, 2, 1, 3]> (v1)
      float[b, 4, s, 16] q3 = ai.coreai.rope <dims = 0, interleaved = 0> (q2, c, c)
      float[b, 2, s, 16] k3 = ai.coreai.rope <dims = 0, interleaved = 0> (k2, c, c)
      float[b, 4, s, 16] a = ai.coreai.{NAME} <scale = 0.5, is_causal = 1, version = 1> (q3, k3, v2)
      float[b, s, 4, 16] t = Transpose <perm = [0, 2, 1, 3]> (a)  y = Reshape (t, row)
    }}
<domain: "ai.coreai", opset_import: ["": 23]>
rope <dims, interleaved> (input, cos, sin) => (output) {{
  half = Constant <value_ints = [1]> ()  b = Shape <start = 0, end = 1> (input)  o = Constant <value_ints = [1, 1, 1]> ()
  d = Concat <axis = 0> (b, o)  e = Expand (cos, d)  f = Squeeze (e, half)  output = RotaryEmbedding (input, f, f)
}}{OPEN.format(name=NAME)}"""
    model = parse(written)
    run_passes(model, [*ORDER[:-1], contrib_attention, ORDER[-1]])
    ops = [node.op_type for node in model.graph]
    assert "GroupQueryAttention" in ops
    assert "Transpose" not in ops
    assert "rope" not in ops
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 5, 64), "z": (2, 5, 32), "w": (2, 5, 32), "c": (1, 1, 5, 8)}
    feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    assert_close(run(model, feeds), run(parse(written), feeds))


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("masked", [False, True])
def test_below_opset_23_it_is_multi_head_attention(masked: bool, causal: int) -> None:
    names = {**PLAIN, "inputs": "q, k, v, m" if masked else "q, k, v", "causal": causal}
    model = parse((HEAD + CALL).format(**names), 22)
    assert run_passes(model, [contrib_attention]).total == 1
    (attention,) = [node for node in model.graph if node.domain == "com.microsoft"]
    assert attention.op_type == "MultiHeadAttention"
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((2, 4, 5, 8)).astype(np.float32) for n in "qkv"}
    feeds["m"] = rng.random((2, 1, 5, 5)) > 0.4
    feeds["m"][0, 0, 0] = False
    q, k, v, m = (torch.from_numpy(feeds[name]) for name in "qkvm")
    mask = m if masked else None
    expected = scaled_dot_product_attention(q, k, v, mask, scale=0.5, is_causal=causal)
    assert_close(run(model, feeds), [expected])


@pytest.mark.parametrize(("heads", "opset"), [("4", 23), ("4", 21), ("2", 21)])
def test_a_causal_mask_needs_no_bias(heads: str, opset: int) -> None:
    """At every opset, also where no body is ONNX's Attention."""
    head = f"main (float[b, 4, s, 8] q, float[b, {heads}, s, 8] k) => (float[b, 4, s, 8] y) <int64 zero = {{0}}, int64 one = {{1}}, int64[1] v0 = {{0}}, int64[3] around = {{0, 1, 3}}, int64[3] lead = {{0, 1, 2}}> {{"
    body = f""" int64[1] n = Shape <start = 2, end = 3> (q)  m = Squeeze (n, v0)  int64[s] i = Range (zero, m, one)
      int64[1, 1, s, 1] r = Unsqueeze (i, around)  int64[1, 1, 1, s] c = Unsqueeze (i, lead)  bool[1, 1, s, s] mask = LessOrEqual (c, r)
      y = ai.coreai.{NAME} <scale = 0.5, is_causal = 0, version = 1> (q, k, k, mask) }}"""
    model = parse(head + body, opset)
    assert run_passes(model, [contrib_attention]).total == 1
    (attention,) = [node for node in model.graph if "Attention" in node.op_type]
    assert mask_of(attention) is None
    rng = np.random.default_rng(0)
    shapes = {"q": (2, 4, 5, 8), "k": (2, int(heads), 5, 8)}
    feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    q, k = (torch.from_numpy(feeds[name]) for name in "qk")
    expected = scaled_dot_product_attention(q, k, k, scale=0.5, is_causal=1)
    assert_close(run(model, feeds), [expected])


def mask_of(attention: ir.Node) -> ir.Value | None:
    """Return the bias of a contrib attention, and check what makes it causal."""
    if attention.op_type == "Attention":
        assert attention.attributes["is_causal"].value == 1
        return attention.inputs[3] if len(attention.inputs) > 3 else None
    if attention.op_type == "MultiHeadAttention":
        assert attention.attributes["unidirectional"].value == 1
        return attention.inputs[5] if len(attention.inputs) > 5 else None
    assert "causal" not in attention.attributes
    assert len(attention.outputs) == 3  # older onnxruntimes want all of them
    return attention.inputs[10] if len(attention.inputs) > 10 else None


@pytest.mark.parametrize("change", [{}, {"k": "2", "w": 16, "d": 16}], ids=["plain", "grouped"])
@pytest.mark.parametrize("hidden", [0, 2], ids=["all_lowest", "some_hidden"])
def test_a_row_of_the_lowest_number_is_no_row_without_a_key(
    hidden: int, change: dict[str, object]
) -> None:
    model = parse(text(mask=True, kind="float", low=-1e30, **change))
    passes = [contrib_open_attention if change else contrib_attention]
    assert run_passes(model, passes).total == 1
    heads, width = int(str(change.get("k", 4))), int(str(change.get("w", 8)))
    rng = np.random.default_rng(0)
    shapes = {"q": (2, 4, 5, width), "k": (2, heads, 5, width), "v": (2, heads, 5, width)}
    feeds = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    feeds["m"] = rng.standard_normal((2, 1, 5, 5)).astype(np.float32)
    feeds["m"][:, :, 2], feeds["m"][0, :, 3, 1:] = (np.finfo(np.float32).min,) * 2
    if hidden:
        feeds["m"][:, :, 2, -hidden:] = -np.inf
    expected = scaled_dot_product_attention(*map(torch.from_numpy, feeds.values()), scale=0.5)
    (actual,) = run(model, feeds)
    assert_close(actual, expected)
