"""The change of outputs between two models, and of numbers that users compute."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.errors import QuantizationError
from coreai_onnx.quantization.evaluation import (
    FIRST_CALLS,
    MetricChange,
    beginning,
    output_changes,
)
from tests.quantization.example_weights import heavy_tailed, linear
from tests.support.tolerances import assert_close

X = np.random.default_rng(3).normal(size=(4, 5, 16)).astype(np.float32)
FEEDS = [(x,) for x in X]
WEIGHT = heavy_tailed(8, 16)


def summed(feeds: list[tuple[np.ndarray]], after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows = np.concatenate([x.reshape(-1, 16) for (x,) in feeds]).astype(np.float64)
    return rows @ WEIGHT.T, rows @ after.T


def test_equal_models_change_nothing() -> None:
    (change,) = output_changes(linear(WEIGHT), linear(WEIGHT), iter(FEEDS))
    assert change.name == "y"
    assert change.sqnr == float("inf")
    assert change.largest == 0
    assert change.same_choice == 1
    assert change.cosine == pytest.approx(1)


def test_the_change_is_that_over_all_calls() -> None:
    after = heavy_tailed(8, 16, seed=1)
    (change,) = output_changes(linear(WEIGHT), linear(after), FEEDS)
    first, second = summed(FEEDS, after)
    noise = np.square(first - second).sum()
    assert_close(np.float32(change.sqnr), np.float32(10 * np.log10(np.square(first).sum() / noise)))
    cosine = (first * second).sum() / np.linalg.norm(first) / np.linalg.norm(second)
    assert_close(np.float32(change.cosine), np.float32(cosine))
    assert_close(np.float32(change.largest), np.float32(np.abs(first - second).max()))
    assert change.same_choice == (first.argmax(-1) == second.argmax(-1)).mean()
    assert 0 < change.same_choice < 1


def test_a_value_that_is_no_longer_finite() -> None:
    after = WEIGHT.copy()
    after[0, 0] = np.inf
    (change,) = output_changes(linear(WEIGHT), linear(after), FEEDS)
    assert change.sqnr == float("-inf")
    assert change.largest == float("inf")


def test_both_not_finite_is_no_change() -> None:
    weight = WEIGHT.copy()
    weight[0] = np.inf
    (change,) = output_changes(linear(weight), linear(weight), FEEDS)
    assert change.sqnr == float("inf")


def test_outputs_of_other_shapes_and_kinds() -> None:
    texts = (
        "values = Shape(x) flag = Greater(x, x)",
        "values = Shape(x) flag = Less(x, x)",
    )
    before, after = (
        ir.from_onnx_text(
            f'<ir_version: 10, opset_import: ["" : 21]> m (float[n, k] x) => '
            f"(int64[2] values, bool[n, k] flag) {{ {body} }}"
        )
        for body in texts
    )
    changes = output_changes(before, after, [(X[0],)])
    assert [change.name for change in changes] == ["values", "flag"]
    assert [change.sqnr for change in changes] == [float("inf"), float("inf")]
    shorter = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 21]> m (float[n, k] x) => '
        "(int64[r] values, bool[n, k] flag) { values = Shape<start = 1>(x) flag = Less(x, x) }"
    )
    assert output_changes(before, shorter, [(X[0],)])[0].sqnr == float("-inf")


def test_the_beginning_of_an_iterator_is_not_lost() -> None:
    endless = ({"x": i} for i in itertools.count())
    first, whole = beginning(endless)
    assert first == [{"x": i} for i in range(FIRST_CALLS)]
    assert list(itertools.islice(whole, 6)) == [{"x": i} for i in range(6)]


def test_without_data() -> None:
    with pytest.raises(QuantizationError, match="there is no evaluation data"):
        output_changes(linear(WEIGHT), linear(WEIGHT), [])


def test_percent_of_a_metric() -> None:
    assert MetricChange("m", 8.0, 9.0).percent == 12.5
    assert MetricChange("m", -4.0, -5.0).percent == -25
    assert MetricChange("m", 0.0, 2.0).percent == float("inf")
