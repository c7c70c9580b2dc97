"""A run ends after its time, and a session can be used after that."""

from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.errors import SessionError
from coreai_onnx.runtime.sessions.create import session
from tests.support.small_models import add_model, endless_model, parse
from tests.support.tolerances import assert_close

IDS, MASK = np.array([[1, 2, 3]]), np.ones((1, 3), np.float32)


def test_an_endless_loop_ends() -> None:
    s = session(endless_model(), kernels=False, timeout=0.2)
    x = np.array(1.0, np.float32)
    for _ in range(2):
        with pytest.raises(SessionError, match=r"did not finish within 0\.2 s"):
            s.run(x)


def test_a_run_in_time_is_an_ordinary_one() -> None:
    timed, plain = (session(add_model(), kernels=False, timeout=time) for time in (60.0, None))
    assert_close(timed.run(IDS, MASK)["sum"], plain.run(IDS, MASK)["sum"])


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf"), True, "1"])
def test_a_time_is_positive(timeout: float) -> None:
    with pytest.raises(SessionError, match="give a number of seconds"):
        session(add_model(), kernels=False, timeout=timeout)


def test_another_failure_keeps_its_message() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[n] x, int64[1] shape) => (float[m] y) { y = Reshape(x, shape) }""")
    timed = session(model, kernels=False, timeout=60.0)
    with pytest.raises(SessionError, match="onnxruntime failed while running"):
        timed.run(np.ones(3, np.float32), np.array([2]))
