from __future__ import annotations

import numpy as np

from coreai_onnx.passes import run_passes
from coreai_onnx.passes.cleanup.remove_repetitions import remove_expands_in_functions
from tests.passes.rewriting import parse, run, same_bytes

TEXT = """<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1]>
main (float[b, s] x, float[{m}] m, float[c, t] u, float[c, t] v) => (float[b, s] y, float[c, t] z) {{
  y = ai.coreai.f (x, m)  z = ai.coreai.f (u, v)
}}
<domain: "ai.coreai", opset_import: ["": 23]>
f (x, mask) => (y) {{ d = Shape (x)  e = Expand (mask, d)  y = Mul (x, e) }}
"""


def test_an_expand_that_no_call_needs_goes() -> None:
    text = TEXT.format(m="b, s")
    model = parse(text)
    assert run_passes(model, [remove_expands_in_functions]).total == 1
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["Shape", "Mul"]
    assert all(value.shape is None for value in function.inputs)
    assert run_passes(model, [remove_expands_in_functions]).total == 0
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    feeds = {"x": a, "m": a + 1, "u": a.T, "v": a.T + 2}
    for wanted, actual in zip(run(parse(text), feeds), run(model, feeds), strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_one_call_that_needs_it_keeps_it() -> None:
    model = parse(TEXT.format(m="s"))
    assert run_passes(model, [remove_expands_in_functions]).total == 0
    assert same_bytes(model, parse(TEXT.format(m="s")))


def test_casts_before_an_expand_keep_the_shape() -> None:
    text = TEXT.replace("e = Expand (mask, d)", "w = Cast<to = 1> (mask)  e = Expand (w, d)")
    model = parse(text.format(m="b, s"))
    assert run_passes(model, [remove_expands_in_functions]).total == 1
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["Shape", "Cast", "Mul"]
