"""Ranges of values on calibration data."""

from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.errors import QuantizationError
from coreai_onnx.quantization.activations.ranges import Clipping, ValueHistogram, value_ranges
from tests.support.small_models import parse

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


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).normal(size=20000),
        np.maximum(np.random.default_rng(1).normal(size=20000), 0),
        np.random.default_rng(2).uniform(-1, 2, size=20000),
    ],
)
@pytest.mark.parametrize("clipping", [Clipping("percentile"), Clipping("entropy")])
def test_an_outlier_does_not_widen_a_range(values: np.ndarray, clipping: Clipping) -> None:
    histogram = ValueHistogram()
    for part in np.split(values.astype(np.float32), 4):
        histogram.add(part)
    histogram.add(np.array([1e4, -3e4], np.float32))
    low, high = histogram.range(clipping, 256)
    assert min(values.min() * 1.02, -0.0) - 0.02 <= low <= np.quantile(values, 0.002)
    assert np.quantile(values, 0.998) <= high <= values.max() * 1.02
    assert histogram.range(Clipping(), 256) == (-3e4, 1e4)


def test_percentiles() -> None:
    histogram = ValueHistogram()
    histogram.add(np.arange(-1000, 1001, dtype=np.float32))
    low, high = histogram.range(Clipping("percentile", 90), 256)
    assert (low, high) == (pytest.approx(-800, rel=0.01), pytest.approx(800, rel=0.01))
    assert histogram.range(Clipping("percentile", 100), 256) == (-1000, 1000)


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy"])
@pytest.mark.parametrize("values", [[0.0, 0.0], [2.5], [-3.0, -3.0], [0.0, 1e-38], [-3e38, 3e38]])
def test_few_values(method: str, values: list[float]) -> None:
    histogram = ValueHistogram()
    histogram.add(np.array(values, np.float32))
    low, high = histogram.range(Clipping(method), 256)
    assert low == pytest.approx(min(values), rel=0.02)
    assert high == pytest.approx(max(values), rel=0.02)


def test_options_out_of_range() -> None:
    with pytest.raises(QuantizationError, match="calibration_method='kl'; choose from minmax, per"):
        Clipping("kl")
    for percentile in (50, 101, True, "99"):
        with pytest.raises(QuantizationError, match=r"percentile=.*; give a number above 50"):
            Clipping("percentile", percentile)


def test_bad_data_is_an_error() -> None:
    with pytest.raises(QuantizationError, match="there is no calibration data"):
        value_ranges(parse(TEXT), ["h"], [])
    with pytest.raises(QuantizationError, match="the calibration data is empty: no output"):
        value_ranges(parse(TEXT), ["h"], feeds([]))
    cache = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[n] x, float[m] c) => (float[k] y) { d = Neg (c) y = Concat <axis = 0> (x, d) }"""
    with pytest.raises(QuantizationError, match="the value 'd' is empty in all calls"):
        value_ranges(parse(cache), ["d"], [(np.ones(1, np.float32), np.ones(0, np.float32))])
    with pytest.raises(QuantizationError, match="calibration call 2: the value 'h' is not finite"):
        value_ranges(parse(TEXT), ["h"], feeds([1.0], [200.0]))
    with pytest.raises(QuantizationError, match=r"calibration call 1: .*x"):
        value_ranges(parse(TEXT), ["h"], [(np.ones((2, 2), np.float32),)])
