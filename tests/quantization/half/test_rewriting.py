"""The dtypes of states, outputs, branches and loops after a conversion to 16 bits."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.model.checks.violations import violations
from coreai_onnx.program import OnnxProgram
from coreai_onnx.quantization.half.magnitudes import known_types
from coreai_onnx.quantization.half.values import element
from tests.support.small_models import parse
from tests.support.tolerances import assert_close

BRANCHES = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[2] x, bool c, float[2] s) => (float[2] y, float[2] s_out) {
        s_out = Add(s, x)
        y = If<then_branch = a () => (float[2] t) { [negated] t = Neg(s_out) },
               else_branch = b () => (float[2] e) { m = Abs(s_out)  e = Exp(m) }>(c)
    }"""


@pytest.mark.parametrize(
    ("keep", "converted"),
    [((), {"t", "m"}), (("negated",), {"m"}), (("If",), set())],
)
def test_states_and_branches_are_converted(keep: tuple[str, ...], converted: set[str]) -> None:
    model = parse(BRANCHES, {"coreai.states": [{"input": "s", "output": "s_out"}]})
    program = OnnxProgram({"main": model}).convert_dtype(keep_io=True, keep=keep)
    assert violations(program.model) == []
    graph = program.model.graph
    types = {v.name: v.dtype for v in (*graph.inputs, *graph.outputs)}
    wide, half = ir.DataType.FLOAT, ir.DataType.FLOAT16
    assert types == {"x": wide, "c": ir.DataType.BOOL, "s": half, "y": wide, "s_out": half}
    found = {v.name: element(given) for v, given in known_types(program.model, []).items()}
    assert {name for name in ("t", "m", "e") if found[name] == half} == converted
    for condition, expected in ((True, [-1, -1]), (False, np.exp([1, 1]))):
        state = np.zeros(2, np.float16)
        y = program.run(x=np.ones(2, np.float32), c=np.array(condition), s=state)
        assert_close(y[0].astype(np.float16), np.array(expected, np.float16))


LOOP = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[2] x, int64 n) => (float[2] y, float[2] w, float[k, 2] all)
    <float[64, 2] u = {U}> {
        go = Constant<value = bool {1}>()
        first = Identity(x)
        y, w, all = Loop<body = step (int64 i, bool going, float[2] s, float[2] r)
            => (bool on, float[2] t, float[2] v, float[2] scanned) {
            on = Identity(going)
            row = Gather(u, i)
            power = Log(row)
            t = Add(s, power)
            smaller = Mul(r, x)
            v = If<then_branch = a () => (float[2] f) { f = Sub(smaller, s) },
                   else_branch = b () => (float[2] g) { g = Identity(s) }>(going)
            scanned = Exp(s)
        }>(n, go, first, x)
    }""".replace("U", ", ".join(["0.5"] * 128))


@pytest.mark.parametrize(("dtype", "casts"), [("float16", []), ("bfloat16", ["Cast"])])
def test_loops_in_which_nodes_keep_float32(dtype: str, casts: list[str]) -> None:
    """onnxruntime has no Sub of bfloat16; the Cast of what the loop reads is before the loop."""
    program = OnnxProgram({"main": parse(LOOP)})
    x, half = np.array([0.5, 1.0], np.float32), ir.DataType[dtype.upper()]
    before = program.run(x, np.array(3)).values()
    program.convert_dtype(dtype)
    assert violations(program.model) == []
    after = program.run(x.astype(half.numpy()), np.array(3)).values()
    for made, expected in zip(after, before, strict=True):
        assert_close(made, expected.astype(half.numpy()), exception="half_model")
    graph = program.model.graph
    assert [node.op_type for node in graph] == ["Constant", "Identity", *casts, "Loop"]
    assert graph.initializers["u"].dtype == half


def test_a_scan_of_slices() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[3, 2] x, float[2] s) => (float[2] y, float[2, 3] z) <float[2] w = {1.5, 2.0}> {
        y, z = Scan<num_scan_inputs = 1, scan_output_axes = [1], body = step
            (float[2] c, float[2] e) => (float[2] d, float[2] f)
            { d = Add(c, e)  g = Mul(e, w)  f = Exp(g) }>(s, x)
    }""")
    program = OnnxProgram({"main": model})
    x, s = np.arange(6, dtype=np.float32).reshape(3, 2) / 4, np.ones(2, np.float32)
    before = program.run(x, s)
    program.convert_dtype(calibration=[(x, s)])
    assert violations(program.model) == []
    halves = program.run(x.astype(np.float16), s.astype(np.float16)).values()
    for made, expected in zip(halves, before.values(), strict=True):
        assert_close(made, expected.astype(np.float16))
