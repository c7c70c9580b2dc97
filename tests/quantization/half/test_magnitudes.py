"""The largest magnitudes of values, in the main graph and in functions of functions."""

from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.errors import QuantizationError
from coreai_onnx.quantization.calibration import run_calls
from coreai_onnx.quantization.half import magnitudes
from coreai_onnx.quantization.half.magnitudes import callers_first, largest_magnitudes
from tests.support.small_models import parse
from tests.support.tolerances import assert_close

MODEL = """<ir_version: 10, opset_import: ["": 21, "m": 1]>
    agraph (float[2] x) => (float[2] y) { a = m.Outer(x)  y = m.Outer(a) }
    <domain: "m", opset_import: ["": 21, "m": 1]> Outer (x) => (y) { h = m.Inner(x)  y = Neg(h) }
    <domain: "m", opset_import: ["": 21]> Inner (x) => (y) { s = Mul(x, x)  y = Sqrt(s) }"""


def test_values_in_functions() -> None:
    model = parse(MODEL)
    before = str(model)
    assert [function.name for function in callers_first(model)] == ["Outer", "Inner"]
    found = largest_magnitudes(model, [{"x": np.array([1.0, np.inf], np.float32)}, (array(-3),)])
    assert found[("m", "Inner", ""), "s"] == 9
    assert found[("m", "Outer", ""), "h"] == 3
    assert found[None, "x"] == 3
    assert found[None, "y"] == 3
    assert str(model) == before


def array(value: float) -> np.ndarray:
    return np.array([value, 0], np.float32)


def test_there_must_be_data() -> None:
    with pytest.raises(QuantizationError, match="there is no calibration data"):
        largest_magnitudes(parse(MODEL), [])


def test_the_model_returns_numbers_instead_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    returned: dict[str, np.ndarray] = {}

    def kept(*args: object, **more: object) -> object:
        for number, arrays in run_calls(*args, **more):  # type: ignore[arg-type]
            returned.update(arrays)
            yield number, arrays

    monkeypatch.setattr(magnitudes, "run_calls", kept)
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[n] x, bool[n] c) => (float[n] y) {
        a = Mul(x, x) b = Exp(a) h = Cast<to = 10>(b) i = Not(c) f = Cast<to = 1>(i) z = Add(f, b)
        y = Sub(z, b)
    }"""
    x = np.array([1.0, -9.0, 3.0], np.float32)  # exp(81) is finite
    found = largest_magnitudes(parse(text), [(x, x > 0)])
    assert found[None, "a"] == 81
    assert_close(np.float32(found[None, "b"]), np.exp(np.float32(81)))
    assert found[None, "f"] == 1
    assert (None, "i") not in found
    assert sorted(name for name, array in returned.items() if array.size > 1) == ["c", "x", "y"]


def test_empty_values_and_values_that_are_not_finite() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[n] x) => (float[n] y) { a = Exp(x) b = Log(a) y = Neg(b) }"""
    empty, wild = np.zeros(0, np.float32), np.array([np.nan, 100, 2, -np.inf], np.float32)
    assert largest_magnitudes(parse(text), [(empty,)])[None, "a"] == 0
    found = largest_magnitudes(parse(text), [(empty,), (wild,)])
    assert_close(np.float32(found[None, "a"]), np.exp(np.float32(2)))
    assert_close(np.float32(found[None, "b"]), np.float32(2))


def test_values_in_bodies() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "m": 1]>
    agraph (float[2] x, bool c, int64 n) => (float[2] y, float[k] z, float[1, 3] q, float[2] w) {
        y, z = Loop<body = step (int64 i, bool going, float[2] s)
            => (bool on, float[2] t, float total) {
            on = Identity(going)  t = m.Twice(s)  a = Neg(t)  total = ReduceSum<keepdims = 0>(a)
        }>(n, c, x)
        twos = Constant<value_floats = [1.0, 7.0, 5.0]>()
        q = Scan<num_scan_inputs = 1, scan_output_axes = [-1], body = one
            (float e) => (float[1] f) { f = m.Square(e) }>(twos)
        w = If<then_branch = yes () => (float[2] v) { b = m.Square(x)  v = Sqrt(b) },
               else_branch = no () => (float[2] v) { d = Sub(x, y)  g = Neg(d)  v = Abs(g) }>(c)
    }
    <domain: "m", opset_import: ["": 21]> Twice (x) => (y) { o = Add(x, x)  y = Identity(o) }
    <domain: "m", opset_import: ["": 21]> Square (x) => (y)
    { r = Mul(x, x)  l = Constant<value_ints = [-1]>()  y = Reshape(r, l) }"""
    found = largest_magnitudes(parse(text), [(array(-3), np.array(True), np.array(4))])
    assert found[None, "t"] == found[None, "a"] == 48
    assert found[None, "total"] == 48
    assert found[("m", "Twice", ""), "o"] == 48
    assert found[("m", "Square", ""), "r"] == 49
    assert found[None, "b"] == 9
    assert found[None, "d"] == found[None, "g"] == 0
    found = largest_magnitudes(parse(text), [(array(-3), np.array(False), np.array(0))])
    assert found[None, "a"] == found[None, "b"] == found[None, "d"] == 0
    assert found[("m", "Square", ""), "r"] == 49
