"""Ranges of values on calibration data."""

from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.errors import QuantizationError
from coreai_onnx.quantization.activation_ranges import value_ranges
from tests.small_models import parse

TEXT = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[n] x) => (float[n] y) { h = Exp(x) y = Neg(h) }"""


def feeds(*rows: list[float]) -> list[tuple[np.ndarray]]:
    return [(np.array(row, np.float32),) for row in rows]


def test_ranges_grow_over_the_calls() -> None:
    model = parse(TEXT)
    found = value_ranges(model, ["x", "h", "y"], feeds([0.0, 1.0], [], [-2.0]))
    assert found["x"] == (-2.0, 1.0)
    assert found["h"] == pytest.approx((np.exp(-2), np.e))
    assert found["y"] == pytest.approx((-np.e, -np.exp(-2)))
    assert [value.name for value in model.graph.outputs] == ["y"]
    assert value_ranges(model, ["h"], feeds([])) == {}


def test_bad_data_is_an_error() -> None:
    with pytest.raises(QuantizationError, match="there is no calibration data"):
        value_ranges(parse(TEXT), ["h"], [])
    with pytest.raises(QuantizationError, match="calibration call 2: the value 'h' is not finite"):
        value_ranges(parse(TEXT), ["h"], feeds([1.0], [200.0]))
    with pytest.raises(QuantizationError, match=r"calibration call 1: .*x"):
        value_ranges(parse(TEXT), ["h"], [(np.ones((2, 2), np.float32),)])
