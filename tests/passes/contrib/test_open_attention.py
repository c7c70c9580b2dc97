from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.passes import Pass
from coreai_onnx.passes.contrib.attention import contrib_attention
from coreai_onnx.passes.contrib.attention_calls import contrib_open_attention
from tests.passes.contrib.test_attention import NAME, OPEN, PLAIN, text
from tests.passes.rewriting import leaves, parse, run, run_passes
from tests.support.tolerances import assert_close

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("rows", ["b", "1"])
def test_groups_that_see_everything(mask: bool, rows: str) -> None:
    written = text(mask=mask, k="2", rows=rows)
    model = parse(written)
    assert run_passes(model, [contrib_open_attention]).total == 1
    (attention,) = [node for node in model.graph if node.domain == "com.microsoft"]
    assert attention.op_type == "GroupQueryAttention"
    assert attention.attributes["causal"].value == 0
    seen = RNG.random((2 if rows == "b" else 1, 1, 5, 5)) > 0.4
    seen[0, 0, 0] = False  # a row without a key
    feeds = {"q": floats(2, 4, 5, 8), "k": floats(2, 2, 5, 8), "v": floats(2, 2, 5, 8), "m": seen}
    assert_close(run(model, feeds), run(parse(written), feeds))
    again = ir.from_proto(ir.to_proto(model))
    assert run_passes(again, [contrib_open_attention, contrib_attention]).total == 0


ROTATED = f"""main (float[b, 4, s, 16] q, float[b, 4, s, 16] k, float[b, 4, s, 16] v, float[1, 1, s, 8] c) => (float[b, 4, s, 16] y) {{
  float[b, 4, s, 16] r = ai.coreai.rope <dims = 0, interleaved = 0> (q, c, c)
  float[b, 4, s, 16] t = ai.coreai.rope <dims = 0, interleaved = 0> (k, c, c)
  y = ai.coreai.{NAME} <scale = 0.5, is_causal = 0, version = 1> (r, t, v) }}
<domain: "ai.coreai", opset_import: ["": 23]>
rope <dims, interleaved> (input, cos, sin) => (output) {{
  half = Constant <value_ints = [1]> ()  b = Shape <start = 0, end = 1> (input)  o = Constant <value_ints = [1, 1, 1]> ()
  d = Concat <axis = 0> (b, o)  e = Expand (cos, d)  f = Squeeze (e, half)  output = RotaryEmbedding (input, f, f)
}}{OPEN.format(name=NAME)}"""


@pytest.mark.parametrize(
    ("one", "op"),
    [(contrib_open_attention, "GroupQueryAttention"), (contrib_attention, "Attention")],
)
def test_rotations_go_inside_where_onnxruntime_is_new(one: Pass, op: str) -> None:
    model = parse(ROTATED)
    assert run_passes(model, [one]).total == 1
    assert op in [node.op_type for node in model.graph]
    shapes = {"q": (2, 4, 5, 16), "k": (2, 4, 5, 16), "v": (2, 4, 5, 16), "c": (1, 1, 5, 8)}
    feeds = {name: floats(*shape) for name, shape in shapes.items()}
    assert_close(run(model, feeds), run(parse(ROTATED), feeds))


@pytest.mark.parametrize("change", [{}, {"causal": 1}, {"k": "2", "causal": 1}, {"window": 2}])
def test_others_are_not_looked_at(change: dict[str, object]) -> None:
    assert set(change) <= set(PLAIN)
    leaves(text(mask=False, **change), contrib_open_attention)
