"""Orders that are measured: the better one is kept."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from coreai_onnx import convert
from coreai_onnx.errors import InputError
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.memory import reorder
from tests.support.tolerances import assert_close


class Branches(torch.nn.Module):
    """The branch that is large in between has the small result, and comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.big, self.small = (
            torch.nn.Linear(16, 4096), torch.nn.Linear(16, 8192), torch.nn.Linear(8192, 1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small = self.small(torch.sin(self.big(x)))
        return torch.cos(self.up(x)) * small


@pytest.fixture
def program() -> OnnxProgram:
    return convert(Branches().eval(), (torch.randn(4, 16),))


def test_a_lower_peak_is_kept(program: OnnxProgram) -> None:
    x = np.ones((4, 16), np.float32)
    expected = program.run(x, kernels=False)
    before, after = reorder(program, kernels=False)
    assert after.peak == after.peak_used < before.peak == before.peak_used
    assert sorted(after.nodes) == sorted(before.nodes)
    for name, value in program.run(x, kernels=False).items():
        assert_close(value, expected[name])


def test_the_order_stays_if_no_other_is_better(program: OnnxProgram) -> None:
    reorder(program, kernels=False)
    present = list(program.model.graph)
    before, after = reorder(program, kernels=False)
    assert after is before
    assert list(program.model.graph) == present


def test_a_failure_changes_nothing(program: OnnxProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    present = list(program.model.graph)
    with pytest.raises(InputError):
        reorder(program, [np.ones(3, np.float32)])
    broken = [*reversed(present)]
    monkeypatch.setattr("coreai_onnx.runtime.memory.reordering.smaller_first", lambda *_: broken)
    monkeypatch.setattr(
        "coreai_onnx.runtime.memory.reordering.planned_run", _then_fail(program, present)
    )
    with pytest.raises(RuntimeError, match="stopped"):
        reorder(program)
    assert list(program.model.graph) == present


def _then_fail(program: OnnxProgram, present: list[object]) -> object:
    def run(*_: object, **__: object) -> object:
        if list(program.model.graph) != present:
            raise RuntimeError("stopped")
        return SimpleNamespace(model=program.model, sizes={})

    return run
