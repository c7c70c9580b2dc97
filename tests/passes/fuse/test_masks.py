from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

from coreai_onnx.composites.attention import scaled_dot_product_attention
from coreai_onnx.passes.cleanup.remove_unused import remove_dead_code
from coreai_onnx.passes.fuse.masks import (
    NAME,
    fuse_causal_masks,
    remove_known_conditions,
    remove_open_masks,
)
from tests.passes.rewriting import fuses, leaves, parse, run, run_passes, same_numbers
from tests.support.tolerances import assert_close

HEAD = "main (float[b, s] x, bool[{dims}] m) => (bool[{out}] y) <int64 zero = {{{start}}}, int64 one = {{1}}, int64[1] v0 = {{0}}, int64[2] axes = {{0, 2}}> {{"


RAMP = " int64[1] n = Shape <start = 1, end = 2> (x)  t = Squeeze (n, v0)  int64[s] i = Range (zero, t, one)  int64[1, s, 1] c = Unsqueeze (i, axes)"


BODY = RAMP + "  bool[1, s, 1] g = GreaterOrEqual (c, zero)"


def text(dims: str, out: str = "b, s, s", order: str = "g, m", start: int = 0) -> str:
    head = HEAD.format(dims=dims, out=out, start=start)
    return f"{head}{BODY} bool[{out}] a = And ({order})  y = Not (a) }}"


@pytest.mark.parametrize("order", ["g, m", "m, g"])
def test_what_is_true_everywhere_goes(order: str) -> None:
    head = HEAD.format(dims="b, s, s", out="b, s, s", start=0).partition(" <")[0]
    written = text("b, s, s", order=order)
    rng = np.random.default_rng(0)
    feeds = {"x": np.zeros((2, 3), np.float32), "m": rng.random((2, 3, 3)) > 0.5}
    fuses(written, remove_known_conditions, 1, f"{head} {{ y = Not (m) }}", feeds)
    same_numbers(written, remove_known_conditions, feeds)


def test_a_smaller_mask_is_repeated() -> None:
    rng = np.random.default_rng(0)
    feeds = {"x": np.zeros((2, 3), np.float32), "m": rng.random((2, 1, 3)) > 0.5}
    same_numbers(text("b, 1, s"), remove_known_conditions, feeds)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (text("b, 1, s", out="b, s, t"), "the other mask may have to be expanded"),
        (text("b, s, s").replace("c, zero", "c, one"), None),
        (text("b, s, s").replace("And", "Or"), None),
    ],
)
def test_others_stay(written: str, reason: str | None) -> None:
    leaves(written, remove_known_conditions, reason)


def test_no_node_is_left_behind_where_a_size_has_no_name() -> None:
    """``b`` can be read from an input, ``t`` cannot: nothing may be made for either."""
    written = text("b, 1, s", out="b, s, t")
    assert run_passes(parse(written), [remove_known_conditions, remove_dead_code]).total == 0


def test_an_output_of_the_graph_keeps_its_name() -> None:
    head = HEAD.format(dims="b, s, s", out="b, s, s", start=0)
    feeds = {"x": np.zeros((1, 2), np.float32), "m": np.eye(2, dtype=bool)[None]}
    written = f"{head}{BODY} bool[b, s, s] k = Not (m)  y = And (g, k) }}"
    same_numbers(written, remove_known_conditions, feeds)
    leaves(
        f"{head}{BODY} y = And (g, m) }}",
        remove_known_conditions,
        "the other mask may have to be expanded",
    )


OPEN_HEAD = "main (float[b, 2, s, 4] q, float[b, 2, s, 4] k, float[b, 2, s, 4] v, {kind}[b, 1, s, s] other) => (float[b, 2, s, 4] y, float[b, 2, s, 4] z) <{kind}[1, 1, 1, 1] true = {{{value}}}>"


ATTRS = '<scale = 0.5, is_causal = 0, window_size = 0, causal_alignment = "lower_right", softcap = {}, version = 1>'


CALLS = """ {{
  d = Shape (other)  m = Expand (true, d)
  y = ai.coreai.{name} {attrs} (q, k, v, m)  z = ai.coreai.{name} {attrs} (q, k, v, other)
}}
<domain: "ai.coreai", opset_import: ["": 23]>
{name} <scale: float> (query, key, value, mask) => (output) {{ output = Attention <scale: float = @scale> (query, key, value, mask) }}"""


@pytest.mark.parametrize(("kind", "value", "word"), [("bool", 1, "mask"), ("float", 0, "bias")])
def test_a_mask_that_hides_nothing_goes(kind: str, value: int, word: str) -> None:
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((2, 2, 3, 4)).astype(np.float32) for n in "qkv"}
    other = rng.standard_normal((2, 1, 3, 3)).astype(np.float32)
    feeds["other"] = other > -1 if kind == "bool" else other
    attrs = ATTRS.format(0.0)
    text = OPEN_HEAD.format(kind=kind, value=value) + CALLS.format(name=NAME, attrs=attrs)
    expected = f"{OPEN_HEAD.format(kind=kind, value=value).partition(' <')[0]} {{ y = ai.coreai.{NAME} {attrs} (q, k, v)  z = ai.coreai.WITH {attrs} (q, k, v, other) }}"
    model = fuses_renamed(text, expected, f"{NAME}.{word}", feeds)
    assert {f.name for f in model.functions.values()} == {NAME, f"{NAME}.{word}"}


def fuses_renamed(text, expected, name, feeds):
    """A name with a dot cannot be written in ONNX's text form."""
    import onnx_ir as ir

    from coreai_onnx.passes.cleanup.remove_unused import remove_dead_code
    from tests.passes.rewriting import main_text

    model = parse(text)
    assert run_passes(model, [remove_open_masks, remove_dead_code]).counts["remove_open_masks"] == 1
    assert main_text(model).replace(name, "WITH") == main_text(parse(expected))
    again = ir.from_proto(ir.to_proto(model))
    assert run_passes(again, [remove_open_masks, remove_dead_code]).total == 0
    assert_close(run(model, feeds), run(parse(text), feeds))
    return model


@pytest.mark.parametrize(
    ("value", "softcap", "opset", "reason"),
    [
        (0, 0.0, 23, None),
        (1, 2.0, 23, "there are sinks or a soft cap"),
    ],
)
def test_other_masks_of_constants_stay(value, softcap, opset, reason) -> None:
    text = OPEN_HEAD.format(kind="bool", value=value)
    text += CALLS.format(name=NAME, attrs=ATTRS.format(softcap)).replace("23", str(opset))
    leaves(text, remove_open_masks, reason, opset=opset)


def test_a_body_without_mask_is_taken_as_it_is() -> None:
    functions = f"""
<domain: "ai.coreai", opset_import: ["": 23]>
{NAME} <scale: float> (query, key, value) => (output) {{ output = Attention <is_causal = 0, scale: float = @scale> (query, key, value) }}
<domain: "ai.coreai", opset_import: ["": 23]>
masked <scale: float> (query, key, value, mask) => (output) {{ output = Attention <scale: float = @scale> (query, key, value, mask) }}"""
    head = "main (float[b, 2, s, 4] q) => (float[b, 2, s, 4] y, float[b, 2, s, 4] z) <bool[1, 1, 1, 1] true = {1}>"
    attrs = ATTRS.format(0.0)
    model = fuses(
        f"{head} {{ y = ai.coreai.{NAME} {attrs} (q, q, q)  z = ai.coreai.{NAME} {attrs} (q, q, q, true) }}{functions}",
        remove_open_masks,
        1,
        f"{head.partition(' <')[0]} {{ y = ai.coreai.{NAME} {attrs} (q, q, q)  z = ai.coreai.{NAME} {attrs} (q, q, q) }}",
    )
    assert len(model.functions) == 2


@pytest.mark.parametrize("opset", [18, 22, 23])
@pytest.mark.parametrize(("values", "fires"), [(2, True), (4, False)])
def test_every_opset_has_a_body_without_a_mask(opset: int, values: int, fires: bool) -> None:
    """Below opset 23 too; only if keys and values have the same heads."""
    head = f"main (float[b, 4, s, 4] q, float[b, 2, s, 4] k, float[b, {values}, s, 4] v) => (float[b, 4, s, 4] y) <bool[1, 1, 1, 1] true = {{1}}>"
    attrs = ATTRS.format(0.0).replace("is_causal = 0", "is_causal = 1")
    function = f'\n<domain: "ai.coreai", opset_import: ["": {opset}]>\n{NAME} (query, key, value, mask) => (output) {{ output = Add (query, mask) }}'
    text = f"{head} {{ y = ai.coreai.{NAME} {attrs} (q, k, v, true) }}{function}"
    if not fires:
        leaves(text, remove_open_masks, "keys and values may have different heads", opset=opset)
        return
    model = parse(text, opset)
    assert run_passes(model, [remove_open_masks]).total == 1
    (call,) = model.graph
    assert (call.attributes["is_causal"].value, len(call.inputs)) == (0, 3)  # the mask overrode it
    q, k, v = (torch.randn(2, heads, 3, 4) for heads in (4, 2, 2))
    actual = run(model, {"q": q.numpy(), "k": k.numpy(), "v": v.numpy()})
    assert_close(actual, [scaled_dot_product_attention(q, k, v, scale=0.5)])


CAUSAL_HEAD = "main (float[b, 4, s, 8] q, float[b, {heads}, {keys}, 8] k, float[b, {heads}, {keys}, 8] v) => (float[b, 4, s, 8] y) <int64 zero = {{0}}, int64 one = {{1}}, int64[1] v0 = {{0}}, int64[3] lead = {{0, 1, 2}}, int64[3] around = {{0, 1, 3}}> {{"


CAUSAL_BODY = """
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


def causal_text(mask: str = CAUSAL, **change: object) -> str:
    return (CAUSAL_HEAD + CAUSAL_BODY).format(mask=mask, **{**PLAIN, **change})


@pytest.mark.parametrize("mask", SPELLINGS)
def test_a_mask_of_positions_is_causal(mask: str) -> None:
    model = parse(causal_text(mask))
    assert run_passes(model, [fuse_causal_masks]).total == 1
    (call,) = [node for node in model.graph if node.op_type == NAME]
    assert (call.attributes["is_causal"].value, len(call.inputs)) == (1, 3)
    rng = np.random.default_rng(0)
    shapes = {"q": (2, 4, 5, 8), "k": (2, 2, 5, 8), "v": (2, 2, 5, 8)}
    feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    assert_close(run(model, feeds), run(parse(causal_text(mask)), feeds))
    again = ir.from_proto(ir.to_proto(model))
    assert run_passes(again, [fuse_causal_masks]).total == 0


def test_a_mask_repeated_for_each_row_is_causal() -> None:
    mask = "bool[1, 1, s, s] c = LessOrEqual (column, row)  int64[1] rows = Shape <start = 0, end = 1> (q)  int64[3] rest = Concat <axis = 0> (one1, n, n)  sizes = Concat <axis = 0> (rows, rest)  bool[b, 1, s, s] mask = Expand (c, sizes)"
    written = causal_text(mask).replace("> {", ", int64[1] one1 = {1}> {", 1)
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
def test_other_masks_of_positions_stay(
    mask: str, change: dict[str, object], reason: str | None
) -> None:
    opset = change.get("opset", 23)
    leaves(causal_text(mask, **change), fuse_causal_masks, reason, opset=opset)


def test_another_causal_body_is_left_alone() -> None:
    other = '\n<domain: "ai.coreai", opset_import: ["": 23]>\ntaken (q, k, v) => (o) { o = Attention <softcap = 1.0> (q, k, v) }'
    model = parse(causal_text() + other)
    model.functions["ai.coreai", "taken", ""].name = f"{NAME}.mask"
    renamed = dict(model.functions.items())
    model.functions.clear()
    for function in renamed.values():
        model.functions[function.identifier()] = function
    report = run_passes(model, [fuse_causal_masks])
    assert report.total == 0
    assert report.near_misses[0].miss.reason == "the model has another causal body"
