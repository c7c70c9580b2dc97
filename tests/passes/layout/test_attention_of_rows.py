from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from coreai_onnx.passes import ORDER
from coreai_onnx.passes.layout.attention_of_rows import (
    attention_of_rows,
    attention_without_transposes,
)
from tests.passes.rewriting import leaves, parse, run, run_passes
from tests.support.tolerances import assert_close

NAME = "scaled_dot_product_attention"
TURNED = "<perm = [0, 2, 1, 3]>"
MAIN = """main (float[b, t, 4, 8] q, float[b, s, {k}, 8] k, float[b, s, {k}, {e}] v, {kind}[{rows}, t, s] m)
  => (float[b, t, 4, {e}] y{more}) {{
  float[b, 4, t, 8] q4 = Transpose {turned} (q)
  float[b, {k}, s, 8] k4 = Transpose <perm = [0, 2, 1, 3]> (k)
  float[b, {k}, s, {e}] v4 = Transpose <perm = [0, 2, 1, 3]> (v)
  float[b, 4, t, {e}] a = ai.coreai.{name} <scale = 0.5, version = 1> ({inputs})
  y = {end} (a){second}
}}"""
OPEN = """
<domain: "ai.coreai", opset_import: ["": 23]>
{name} <scale: float> (query, key, value) => (output) {{
  w = Cast <to = 1> (query)  a = Attention <scale: float = @scale> (w, key, value)  output = CastLike (a, query)
}}"""
MASKED = """
<domain: "ai.coreai", opset_import: ["": 23]>
{name} <scale: float> (query, key, value, mask) => (output) {{
  a = Attention <scale: float = @scale> (query, key, value, mask)
  last = Constant <value_ints = [-1]> ()  zero = Constant <value_float = 0.0> ()  like = CastLike (zero, a)
  f = Cast <to = 1> (mask)  r = ReduceMax (f, last)  some = Greater (r, zero)  output = Where (some, a, like)
}}"""
PLAIN = {"k": 4, "e": 8, "kind": "bool", "rows": "b, 1", "turned": TURNED, "name": NAME, "more": "", "second": "", "end": f"Transpose {TURNED}"}  # fmt: skip


def text(*, mask: bool, **change: object) -> str:
    names = {**PLAIN, "inputs": "q4, k4, v4, m" if mask else "q4, k4, v4", **change}
    return (MAIN + (MASKED if mask else OPEN)).format(**names)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("change", [{}, {"k": 2}, {"e": 3}])
def test_bodies_attend_to_rows(mask: bool, change: dict[str, object]) -> None:
    written = text(mask=mask, **change)
    model = parse(written)
    assert run_passes(model, [attention_of_rows]).total == 1
    (function,) = model.functions.values()
    (attention,) = [node for node in function if node.op_type == "Attention"]
    names = {**PLAIN, **change}
    assert attention.attributes["q_num_heads"].value == 4
    assert attention.attributes["kv_num_heads"].value == names["k"]
    rng = np.random.default_rng(0)
    feeds = {
        "q": rng.standard_normal((2, 3, 4, 8)).astype(np.float32),
        "k": rng.standard_normal((2, 5, names["k"], 8)).astype(np.float32),
        "v": rng.standard_normal((2, 5, names["k"], names["e"])).astype(np.float32),
        "m": rng.random((2, 1, 3, 5)) > 0.4,
    }
    feeds["m"][0, 0, 0] = False  # a row without a key
    assert_close(run(model, feeds), run(parse(written), feeds))
    again = ir.from_proto(ir.to_proto(model))
    assert run_passes(again, [attention_of_rows]).total == 0


@pytest.mark.parametrize("mask", [False, True])
def test_onnxruntime_copies_nothing_from_one_layout_to_the_other(mask: bool, tmp_path) -> None:
    model = parse(text(mask=mask))
    run_passes(model, [attention_of_rows])
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    left = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert "Attention" in left
    assert "Transpose" not in left


@pytest.mark.parametrize(
    ("mask", "change", "reason"),
    [
        (
            False,
            {"turned": "<perm = [0, 2, 3, 1]>"},
            "queries, keys or values of a call are not transposed from rows",
        ),
        (False, {"end": "Neg"}, "the result of a call is not transposed to rows"),
        (True, {"rows": "b, 4"}, "the mask of a call must be the same for all heads"),
        (False, {"e": "d"}, "the numbers and sizes of heads differ or are not known"),
        (
            False,
            {
                "more": ", float[b, t, 2, 8] z",
                "second": f"  float[b, t, 2, 8] h = Slice (q, v0, v2, v2)  float[b, 2, t, 8] h4 = Transpose {TURNED} (h)"
                f"  float[b, 2, t, 8] c = ai.coreai.{NAME} <scale = 0.5, version = 1> (h4, h4, h4)  z = Transpose {TURNED} (c)"
                "  v0 = Constant <value_ints = [0]> ()  v2 = Constant <value_ints = [2]> ()",
            },
            "the numbers and sizes of heads differ or are not known",
        ),
    ],
)
def test_others_stay(mask: bool, change: dict[str, object], reason: str) -> None:
    leaves(text(mask=mask, **change), attention_of_rows, reason)


def test_bodies_without_an_attention_are_left_alone() -> None:
    spelled = OPEN.format(name=NAME).replace("Attention <scale: float = @scale>", "Sum")
    model = parse(MAIN.format(**PLAIN, inputs="q4, k4, v4") + spelled)
    report = run_passes(model, [attention_of_rows])
    assert report.total == 0
    assert not report.near_misses


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("change", [{}, {"k": 2}, {"e": 3}])
def test_calls_take_rows_as_they_are(mask: bool, change: dict[str, object]) -> None:
    written = text(mask=mask, **change)
    model = parse(written)
    assert run_passes(model, [attention_without_transposes, *ORDER]).counts[
        attention_without_transposes.__name__
    ]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert [node.op_type for node in model.graph] == [f"{NAME}_bshd"]
    names, rng = {**PLAIN, **change}, np.random.default_rng(0)
    feeds = {
        "q": rng.standard_normal((2, 3, 4, 8)).astype(np.float32),
        "k": rng.standard_normal((2, 5, names["k"], 8)).astype(np.float32),
        "v": rng.standard_normal((2, 5, names["k"], names["e"])).astype(np.float32),
        "m": rng.random((2, 1, 3, 5)) > 0.4,
    }
    feeds["m"][0, 0, 0] = False
    assert_close(run(model, feeds), run(parse(written), feeds))
    assert run_passes(ir.from_proto(ir.to_proto(model)), [attention_without_transposes]).total == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"turned": "<perm = [0, 2, 3, 1]>"}, None),
        ({"end": "Relu"}, "the result is not only transposed to rows"),
        ({"more": ", float[b, 4, t, 8] z", "second": " z = Relu (a)"},
         "the result is not only transposed to rows"),
    ],
)  # fmt: skip
def test_calls_stay_between_other_nodes(change: dict[str, object], reason: str | None) -> None:
    leaves(text(mask=False, **change), attention_without_transposes, reason)
