from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.passes.analysis.attention_bodies import NAME
from coreai_onnx.passes.fuse.masks import fuse_causal_masks
from tests.passes.rewriting import leaves, parse, run, run_passes
from tests.support.tolerances import assert_close

HEAD = "main (float[b, 4, s, 8] q, float[b, {heads}, {keys}, 8] k, float[b, {heads}, {keys}, 8] v) => (float[b, 4, s, 8] y) <int64 zero = {{0}}, int64 one = {{1}}, int64[1] v0 = {{0}}, int64[3] lead = {{0, 1, 2}}, int64[3] around = {{0, 1, 3}}> {{"
BODY = """
  int64[1] n = Shape <start = 2, end = 3> (q)  t = Squeeze (n, v0)  int64[s] i = Range (zero, t, one)
  int64[1] m = Shape <start = 2, end = 3> (k)  u = Squeeze (m, v0)  int64[{keys}] j = Range (zero, u, one)
  int64[1, 1, s, 1] row = Unsqueeze (i, around)  int64[1, 1, 1, {keys}] column = Unsqueeze (j, lead)
  {mask}
  y = ai.coreai.{name} <scale = 0.5, is_causal = 0, softcap = {softcap}, version = 1> (q, k, v, mask)
}}
<domain: "ai.coreai", opset_import: ["": {opset}]>
{name} <scale: float> (query, key, value, mask) => (output) {{ output = Attention <scale: float = @scale> (query, key, value, mask) }}"""
PLAIN = {"heads": 2, "keys": "s", "softcap": 0.0, "opset": 23, "name": NAME}
CAUSAL = "bool[1, 1, s, s] mask = LessOrEqual (column, row)"
SPELLINGS = [
    CAUSAL,
    "bool[1, 1, s, s] mask = GreaterOrEqual (row, column)",
    "d = Sub (row, column)  bool[1, 1, s, s] mask = GreaterOrEqual (d, zero)",
    "e = Add (row, one)  bool[1, 1, s, s] mask = Less (column, e)",
]


def text(mask: str = CAUSAL, **change: object) -> str:
    return (HEAD + BODY).format(mask=mask, **{**PLAIN, **change})


@pytest.mark.parametrize("mask", SPELLINGS)
def test_a_mask_of_positions_is_causal(mask: str) -> None:
    model = parse(text(mask))
    assert run_passes(model, [fuse_causal_masks]).total == 1
    (call,) = [node for node in model.graph if node.op_type == NAME]
    assert (call.attributes["is_causal"].value, len(call.inputs)) == (1, 3)
    rng = np.random.default_rng(0)
    shapes = {"q": (2, 4, 5, 8), "k": (2, 2, 5, 8), "v": (2, 2, 5, 8)}
    feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    assert_close(run(model, feeds), run(parse(text(mask)), feeds))
    again = ir.from_proto(ir.to_proto(model))
    assert run_passes(again, [fuse_causal_masks]).total == 0


def test_a_mask_repeated_for_each_row_is_causal() -> None:
    mask = "bool[1, 1, s, s] c = LessOrEqual (column, row)  int64[1] rows = Shape <start = 0, end = 1> (q)  int64[3] rest = Concat <axis = 0> (one1, n, n)  sizes = Concat <axis = 0> (rows, rest)  bool[b, 1, s, s] mask = Expand (c, sizes)"
    written = text(mask).replace("> {", ", int64[1] one1 = {1}> {", 1)
    assert run_passes(parse(written), [fuse_causal_masks]).total == 1


@pytest.mark.parametrize(
    ("mask", "change", "reason"),
    [
        (CAUSAL.replace("LessOrEqual", "Less"), {}, "the mask depends on positions, but is not causal"),
        ("bool[1, 1, s, s] mask = GreaterOrEqual (column, row)", {}, "the mask depends on positions, but is not causal"),
        (CAUSAL.replace("s, s", "s, t"), {"keys": "t"}, "the mask depends on positions, but is not causal"),
        ("d = Sub (u, t)  far = Add (row, d)  bool[1, 1, s, t] mask = LessOrEqual (column, far)", {"keys": "t"}, "there may be more keys than queries"),
        (CAUSAL, {"opset": 21}, "the opset has no Attention"),
        (CAUSAL, {"softcap": 2.0}, "there are sinks or a soft cap"),
        ("bool[1, 1, s, s] mask = Equal (column, row)", {}, None),
    ],
)  # fmt: skip
def test_others_stay(mask: str, change: dict[str, object], reason: str | None) -> None:
    opset = change.get("opset", 23)
    leaves(text(mask, **change), fuse_causal_masks, reason, opset=opset)


def test_another_causal_body_is_left_alone() -> None:
    other = '\n<domain: "ai.coreai", opset_import: ["": 23]>\ntaken (q, k, v) => (o) { o = Attention <softcap = 1.0> (q, k, v) }'
    model = parse(text() + other)
    model.functions["ai.coreai", "taken", ""].name = f"{NAME}.mask"
    renamed = dict(model.functions.items())
    model.functions.clear()
    for function in renamed.values():
        model.functions[function.identifier()] = function
    report = run_passes(model, [fuse_causal_masks])
    assert report.total == 0
    assert report.near_misses[0].miss.reason == "the model has another causal body"
