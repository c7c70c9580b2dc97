"""What keeps float32 in a conversion to 16 bits."""

from __future__ import annotations

import numpy as np

from coreai_onnx.model.checks.violations import violations
from coreai_onnx.program import OnnxProgram
from tests.support.small_models import parse
from tests.support.tolerances import assert_close


def test_masks_and_small_constants() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[2, 4] x, int64[2, 4] mask) => (float[2, 4] y, float[2, 4] z)
    <float one = {1.0}, float low = {-3.4028234e38}, float tiny = {1e-12}, float zero = {0.0}> {
        floats = Cast<to = 1>(mask)  away = Sub(one, floats)  added = Mul(away, low)
        scores = Add(x, added)  y = Softmax(scores)
        nothing = Mul(x, zero)  more = Add(nothing, tiny)  root = Sqrt(more)  z = Div(root, root)
    }""")
    program = OnnxProgram({"main": model}).convert_dtype("float16")
    assert violations(program.model) == []
    mask = np.array([[1, 1, 0, 0], [0, 0, 0, 0]])
    y, z = program.run(np.ones((2, 4), np.float16), mask)
    assert_close(y, np.array([[0.5, 0.5, 0, 0], [0.25] * 4], np.float16))
    assert_close(z, np.ones((2, 4), np.float16))


def test_positions_keep_float32() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (int64[n] p, float[n] x) => (float[n] y) <float f = {0.7}>
    { wide = Cast<to = 1>(p)  angle = Mul(wide, f)  turn = Cos(angle)  y = Mul(x, turn) }""")
    program = OnnxProgram({"main": model}).convert_dtype("float16")
    positions = np.array([1, 4099, 100_003])
    expected = np.cos(positions.astype(np.float32) * np.float32(0.7)).astype(np.float16)
    assert_close(program.run(positions, np.ones(3, np.float16))[0], expected)


def test_the_result_of_a_function_may_overflow() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21, "m": 1]>
    agraph (float[2] x) => (float[2] y) { a = m.Outer(x)  b = Log(a)  y = Neg(b) }
    <domain: "m", opset_import: ["": 21, "m": 1]> Outer (x) => (y) { y = m.Inner(x) }
    <domain: "m", opset_import: ["": 21]> Inner (x) => (y) { y = Mul(x, x) }""")
    x = np.array([3e3, 2.0], np.float32)
    program = OnnxProgram({"main": model}).convert_dtype(calibration=[(x,)])
    expected = -np.log(np.square(x)).astype(np.float16)
    assert_close(program.run(x.astype(np.float16))[0], expected)
