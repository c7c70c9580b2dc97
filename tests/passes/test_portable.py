from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from coreai_onnx.errors import TargetError
from coreai_onnx.model.checks.violations import violations
from coreai_onnx.passes.targets import make_portable
from tests.passes.rewriting import optimize_for, parse, run, same_bytes

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


IN_FUNCTION = """<ir_version: 10, opset_import: ["": {opset}, "f": 1]>
main (bool c, {dtype}[n, m] x) => ({output} y) {{
  y = If (c) <then_branch = p () => ({output} t) {{ t = f.f (x) }},
              else_branch = q () => ({output} e) {{ k = Neg (x)  e = f.f (k) }}>
}}
<domain: "f", opset_import: ["": {opset}]>
f (x) => (y) {{ {body} }}
"""
POSITIVE = "z = Constant <value_int = 0> ()  k = CastLike (z, x)  b = Greater (x, k)"
ROWS = "a = Constant <value_ints = [1]> ()"
VALUES = [[0.0, 1.5, -2.0], [np.inf, -np.inf, -1.0]]


@pytest.mark.parametrize(
    ("opset", "dtype", "output", "body"),
    [
        (21, "float", "bool[n, 1]", f"{POSITIVE}  {ROWS}  y = ReduceMax (b, a)"),
        (23, "float", "bool[n]", f"{POSITIVE}  {ROWS}  y = ReduceMin <keepdims = 0> (b, a)"),
        (23, "float", "bool", f"{POSITIVE}  y = ReduceMax <keepdims = 0> (b)"),
        (23, "float16", "bool[n, m]", "y = IsInf <detect_negative = 0> (x)"),
    ],
)
def test_functions_take_dtypes_that_came_later(opset, dtype, output, body) -> None:
    text = IN_FUNCTION.format(opset=opset, dtype=dtype, output=output, body=body)
    model = parse(text)
    optimize_for(model, "portable")
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert (dict(model.graph.opset_imports), violations(model)) == ({"": 18}, [])
    x = np.array(VALUES, np.float16 if dtype == "float16" else np.float32)
    for condition in (True, False):
        feeds = {"c": np.array(condition), "x": x}
        np.testing.assert_array_equal(run(model, feeds), run(parse(text), feeds))


@pytest.mark.parametrize("dtype", ["float", "double", "float16"])
def test_a_remainder_of_floats_has_the_sign_of_the_divisor(dtype: str) -> None:
    text = f"main ({dtype}[n] a, {dtype}[n] b) => ({dtype}[n] y) {{ y = Mod (a, b) }}"
    model = parse(text, 28)
    optimize_for(model, "portable")
    assert [dict(m.attributes)["fmod"].as_int() for m in model.graph if m.op_type == "Mod"] == [1]
    numbers = np.array([0, 1, -1, 2.5, -2.5, -7.25, np.inf, -np.inf, np.nan])
    a, b = (x.ravel().astype({"float": "f4", "double": "f8"}.get(dtype, "f2")) for x in np.meshgrid(numbers, numbers))  # fmt: skip
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run(model, {"a": a, "b": b})[0], np.mod(a, b))


def test_what_only_the_dtypes_in_a_function_reveal_is_refused() -> None:
    text = IN_FUNCTION.format(
        opset=23, dtype="bfloat16", output="bfloat16[n, m]", body="y = Cos (x)"
    )
    model = parse(text)
    with pytest.raises(TargetError, match=r"Cos\(bfloat16\[n, m\]\).*\n.*convert it with"):
        optimize_for(model, "portable")
    assert same_bytes(model, parse(text))
