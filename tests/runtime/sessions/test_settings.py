"""Settings of sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coreai_onnx.errors import SessionError
from coreai_onnx.runtime.sessions.settings import SessionSettings, executions_on


@pytest.mark.parametrize("threads", [0, 1025, -1, "2", 1.0])
def test_a_number_of_threads_that_is_out_of_range(threads: Any) -> None:
    with pytest.raises(SessionError, match="give a number from 1 to 1024"):
        SessionSettings(threads=threads)


def test_threads_in_range() -> None:
    assert [SessionSettings(threads=n).threads for n in (None, 1, 1024)] == [None, 1, 1024]


def test_kernels_run_beside_bodies_unless_a_provider_takes_nodes_from_the_cpu(
    kernels: Path,
) -> None:
    assert kernels.is_file()
    for provider in (None, "cpu", ("CPUExecutionProvider", {"use_arena": True})):
        assert list(executions_on(provider, kernels=None)) == ["bodies", "kernels"]
    assert list(executions_on("webgpu", kernels=None)) == ["bodies"]
    assert list(executions_on(None, kernels=False)) == ["bodies"]
    assert executions_on("webgpu", kernels=True, threads=2) == {
        "bodies": {"kernels": False, "providers": "webgpu", "threads": 2},
        "kernels": {"kernels": True, "providers": "webgpu", "threads": 2},
    }


@pytest.mark.parametrize("other", [{"kernels": False}, {"providers": "webgpu"}])
def test_packed_weights_are_those_of_kernels(other: dict[str, Any]) -> None:
    assert SessionSettings(packed_weights="weights").packed_weights == "weights"
    with pytest.raises(SessionError, match="packed_weights needs the kernels, and no"):
        SessionSettings(packed_weights="weights", **other)
