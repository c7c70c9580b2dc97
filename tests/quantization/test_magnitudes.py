"""The largest magnitudes of values, in the main graph and in functions of functions."""

from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.errors import QuantizationError
from coreai_onnx.quantization.magnitudes import callers_first, largest_magnitudes
from tests.small_models import parse

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
