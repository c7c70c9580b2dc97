from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from coreai_onnx.errors import TargetError
from coreai_onnx.passes.portable import make_portable
from tests.passes.rewriting import parse, run, same_bytes

TEXT = """<ir_version: 10, opset_import: ["": {opset}, "ai.coreai": 1]>
main (bool c, float[n] x) => (float[n] y) {{
  z = If (c) <then_branch = p () => (float[n] t) {{ t = ai.coreai.f <k = 2.0> (x) }},
              else_branch = q () => (float[n] e) {{ e = Abs (x) }}>
  y = ai.coreai.f (z)
}}
<domain: "ai.coreai", opset_import: ["": {opset}, "ai.coreai": 1]>
f <k: float = 3.0> (a) => (b) {{ d = Constant <value_float: float = @k> ()  e = ai.coreai.g (a)  b = Mul (e, d) }}
<domain: "ai.coreai", opset_import: ["": {opset}]>
g (a) => (b) {{ b = {op} (a) }}
"""


@pytest.mark.parametrize("opset", [18, 21, 23])
def test_functions_are_written_out_at_opset_18(opset: int) -> None:
    text = TEXT.format(opset=opset, op="Neg")
    model = parse(text)
    assert make_portable(model) == 3
    assert not model.functions
    assert dict(model.graph.opset_imports) == {"": 18}
    assert model.ir_version == 8
    assert {node.domain for node in model.graph.all_nodes()} == {""}
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    for condition in (True, False):
        feeds = {"c": np.array(condition), "x": np.array([1, -2], np.float32)}
        np.testing.assert_array_equal(run(model, feeds), run(parse(text), feeds))
    again = ir.from_proto(ir.to_proto(model))
    assert make_portable(again) == 0
    assert same_bytes(again, model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("Neg (a)", "Gelu (a)"), r"1x Gelu is an op since opset 20\n  convert it with opset_version=18"),
        (("ai.coreai.g (a)", "ai.coreai.missing (a)"), "1x ai.coreai::missing has no body"),
    ],
)  # fmt: skip
def test_what_cannot_be_brought_down_is_listed(change, message) -> None:
    text = TEXT.format(opset=23, op="Neg").replace(*change)
    model = parse(text)
    with pytest.raises(TargetError, match=message):
        make_portable(model)
    assert same_bytes(model, parse(text))
