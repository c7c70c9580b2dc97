"""The methods of a program: which entrypoint the calibration is for, reports, open sessions."""

from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.errors import QuantizationError, StagingError
from coreai_onnx.program import OnnxProgram
from tests.quantization.example_weights import heavy_tailed, linear


def program(*names: str) -> OnnxProgram:
    return OnnxProgram({name: linear(heavy_tailed(96, 64)) for name in names})


def test_a_session_that_was_open_is_replaced() -> None:
    one = program("main")
    x = np.ones((1, 64), np.float32)
    before = one.run(x)[0]
    assert one.quantization_report is None
    assert one.quantize(2) is one
    assert one.quantization_report is one.quantization_reports["main"]
    assert not np.array_equal(one.run(x)[0], before)
    assert program("main").convert_dtype(keep_io=True).run(x)[0].dtype == before.dtype


def test_calibration_needs_to_know_the_entrypoint() -> None:
    two = program("encode", "decode")
    with pytest.raises(StagingError, match="say which entrypoint; there are encode, decode"):
        two.quantize(4, calibration=[(np.ones((1, 64), np.float32),)])
    assert list(two.quantize(4).quantization_reports) == ["encode", "decode"]


def test_metrics_before_and_after() -> None:
    one, x = program("main"), np.ones((1, 64), np.float32)

    def peak(asked: OnnxProgram) -> float:
        return float(np.abs(asked.run(x)[0]).max())

    before = peak(one)
    report = one.quantize(2, metrics={"peak": peak}).quantization_report
    assert report is not None
    (metric,) = report.metrics
    assert (metric.name, metric.before, metric.after) == ("peak", before, peak(one))
    assert metric.percent == pytest.approx(100 * (metric.after / before - 1))
    assert "peak" in str(report)


def test_a_metric_that_fails_leaves_the_program_unchanged() -> None:
    one, x = program("main"), np.ones((1, 64), np.float32)
    before, calls = one.run(x)[0], []

    def fails_later(asked: OnnxProgram) -> float:
        calls.append(asked)
        if len(calls) == 2:
            raise ValueError("no text")
        return 1.0

    with pytest.raises(QuantizationError, match="the metric 'wrong' cannot be computed"):
        one.quantize(2, metrics={"wrong": fails_later})
    assert np.array_equal(one.run(x)[0], before)
    assert one.quantization_report is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "there is no evaluation data"),
        ([(np.ones((1, 63), np.float32),)], "evaluation call 1: .*dimension 1 is 63"),
        ([{"z": np.ones((1, 64), np.float32)}], "evaluation call 1: "),
        ([3], "evaluation call 1: is a int, not a mapping"),
    ],
)
def test_wrong_evaluation_data_leaves_the_program_unchanged(data: list, message: str) -> None:
    one, x = program("main"), np.ones((1, 64), np.float32)
    before = one.run(x)[0]
    with pytest.raises(QuantizationError, match=message):
        one.quantize(2, evaluation=data)
    assert np.array_equal(one.run(x)[0], before)
