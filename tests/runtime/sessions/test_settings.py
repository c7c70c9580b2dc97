"""Settings of sessions."""

from __future__ import annotations

from typing import Any

import pytest

from coreai_onnx.errors import SessionError
from coreai_onnx.runtime.sessions.settings import SessionSettings


@pytest.mark.parametrize("threads", [0, 1025, -1, "2", 1.0])
def test_a_number_of_threads_that_is_out_of_range(threads: Any) -> None:
    with pytest.raises(SessionError, match="give a number from 1 to 1024"):
        SessionSettings(threads=threads)


def test_threads_in_range() -> None:
    assert [SessionSettings(threads=n).threads for n in (None, 1, 1024)] == [None, 1, 1024]
