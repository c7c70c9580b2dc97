"""Bodies, kernels and torch in one profile."""

from __future__ import annotations

import pytest
import torch

import coreai_onnx
from coreai_onnx.errors import ComparisonError, ProviderError
from tests.debugging.small_reference import Small, converted
from tests.support.execution_providers import WITHOUT_ARENA, count_without_arena
from tests.support.small_models import counter_model

LINES = {
    "hidden = self.first(self.norm(x))",
    "hidden = torch.tanh(hidden) + x",
    "return self.second(hidden).softmax(-1)",
}


def test_every_line_has_every_time() -> None:
    program = converted()
    profile = coreai_onnx.profile(program, reference=program.record(), runs=2, warmup=1)
    assert [one.name for one in profile.executions] == ["bodies", "kernels", "torch"]
    assert all(len(one.timing.seconds) == 2 for one in profile.executions)
    lines = profile.by("line")
    assert {total.where.code for total in lines} == LINES
    assert all(set(total.seconds) == {"bodies", "kernels", "torch"} for total in lines)
    assert "kernels ms" in str(profile)


def test_inputs_of_the_model_without_torch() -> None:
    x = torch.randn(3, 8).numpy()
    for inputs in ((x,), {"x": x}, torch.from_numpy(x), None):
        profile = coreai_onnx.profile(converted(), inputs, kernels=False, runs=1, warmup=0)
        assert [one.name for one in profile.executions] == ["bodies"]


def test_a_module_is_measured_as_a_whole() -> None:
    module, x = Small().eval(), torch.randn(3, 8)
    profile = coreai_onnx.profile(converted(), (x,), module, kernels=False, runs=2)
    assert len(profile["torch"].timing.seconds) == 2
    assert profile["torch"].nodes == ()


def test_every_run_starts_from_the_initial_states() -> None:
    program = coreai_onnx.OnnxProgram({"main": counter_model()})
    profile = coreai_onnx.profile(program, (torch.ones(3),), kernels=False, runs=3)
    assert len(profile.main.timing.seconds) == 3


def test_wrong_arguments() -> None:
    with pytest.raises(ComparisonError, match="give inputs="):
        coreai_onnx.profile(converted(), None, Small())
    with pytest.raises(ComparisonError, match="runs must be at least 1"):
        coreai_onnx.profile(converted(), (torch.ones(1, 8),), runs=0)


def test_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = count_without_arena(monkeypatch)
    coreai_onnx.profile(converted(), kernels=False, runs=1, warmup=0, provider=WITHOUT_ARENA)
    assert len(opened) == 1
    with pytest.raises(ProviderError, match="tpu is not available"):
        coreai_onnx.profile(converted(), provider="tpu")
