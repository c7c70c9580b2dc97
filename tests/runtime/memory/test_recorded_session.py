"""Recorded runs: nodes in order, with their results and memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coreai_onnx.errors import SessionError
from coreai_onnx.runtime.memory.recorded_session import recorded_session
from tests.support.small_models import endless_model, linear_model, parse


def test_the_nodes_of_a_run() -> None:
    with recorded_session(linear_model(), kernels=False, threads=1) as recorded:
        recorded.session.run(np.ones((3, 8), np.float32))
        recording = recorded.recording()
    assert recording.outputs == {"y"}
    assert "x" in recording.inputs
    assert [node.outputs for node in recording.nodes][-1] == ("y",)
    assert recording.nodes[-1].bytes == (3 * 64 * 4,)
    assert recording.shapes["x"] == ("batch", 8)
    assert recording.weights == (8 * 64 + 64 + 2 * 2) * 4
    assert recording.arena > 0
    assert all((node.in_use or 0) > recording.before for node in recording.nodes)


def test_nodes_of_branches_are_read_by_their_node() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (bool[1] go, float[4] x) => (float[4] y) {
        a = Neg(x)
        b = Exp(x)
        y = If(go) <
            then_branch = yes () => (float[4] t) { t = Abs(a) },
            else_branch = no () => (float[4] e) { c = Sqrt(b)  e = Add(c, a) }
        >
    }""")
    with recorded_session(model, kernels=False) as recorded:
        recorded.session.run(np.array([True]), np.ones(4, np.float32))
        nodes = recorded.recording().nodes
    assert [node.op for node in nodes][-1] == "If"
    assert set(nodes[-1].inputs) == {"go", "a", "b"}


def test_a_session_that_has_not_run() -> None:
    with recorded_session(linear_model(), kernels=False) as recorded:
        with pytest.raises(SessionError, match="has not run"):
            recorded.recording()
        with pytest.raises(SessionError, match="has ended"):
            recorded.recording()


def test_no_files_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with recorded_session(linear_model(), kernels=False):
        assert [*tmp_path.iterdir()]
    with pytest.raises(SessionError), recorded_session(tmp_path / "missing.onnx"):
        pass
    with recorded_session(endless_model(), kernels=False):
        pass
    assert not [*tmp_path.iterdir()]
