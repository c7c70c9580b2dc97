"""The methods of a program: which entrypoint the calibration is for, reports, open sessions."""

from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.errors import StagingError
from coreai_onnx.program import OnnxProgram
from tests.quantization.weights import heavy_tailed, linear


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
