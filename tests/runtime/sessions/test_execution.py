"""One call of onnxruntime, with and without memory for its results."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from coreai_onnx.errors import SessionError
from coreai_onnx.runtime.sessions.execution import execute
from coreai_onnx.runtime.sessions.session import Session
from tests.support.small_models import linear_model


@pytest.fixture
def session() -> ort.InferenceSession:
    return Session(linear_model(), kernels=False).ort


def x(rows: int = 2) -> dict[str, ort.OrtValue]:
    return {"x": ort.OrtValue.ortvalue_from_numpy(np.ones((rows, 8), np.float32))}


def test_a_result_in_given_memory(session: ort.InferenceSession) -> None:
    memory = np.zeros((2, 64), np.float32)
    target = ort.OrtValue.ortvalue_from_numpy(memory)
    plain = execute(session, ["y"], x(), {}, ort.RunOptions())["y"].numpy()
    bound = execute(session, ["y"], x(), {"y": target}, ort.RunOptions())["y"]
    assert bound.data_ptr() == target.data_ptr()
    np.testing.assert_array_equal(bound.numpy(), plain)
    assert plain.any()


def test_a_failure_is_typed(session: ort.InferenceSession) -> None:
    feeds = {"x": ort.OrtValue.ortvalue_from_numpy(np.ones((2, 9), np.float32))}
    with pytest.raises(SessionError, match="onnxruntime failed while running"):
        execute(session, ["y"], feeds, {}, ort.RunOptions())
