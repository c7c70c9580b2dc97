"""What the memory plans of finished programs include."""

from __future__ import annotations

import pytest
import torch
from torch.export import export

from coreai_onnx.delegation import FinishConfig, MemoryPlanningPass, to_edge
from coreai_onnx.errors import PassError, StagingError
from coreai_onnx.runtime.memory import naive

X = torch.ones(32, 32)


def peak(planning: MemoryPlanningPass) -> int:
    manager = to_edge(export(torch.nn.Linear(32, 32), (X,), strict=True))
    finished = manager.to_executorch(FinishConfig(memory_planning_pass=planning))
    plan = finished.memory_plan(kernels=False)
    assert plan.peak == plan.peak_used
    with pytest.raises(StagingError, match="generate"):
        finished.memory_plan("generate")
    return plan.peak


def test_inputs_and_outputs() -> None:
    size = X.numel() * 4
    assert peak(MemoryPlanningPass()) == 2 * size
    assert peak(MemoryPlanningPass(alloc_graph_input=False)) == size
    assert peak(MemoryPlanningPass(alloc_graph_output=False)) == size
    assert peak(MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)) == 0


def test_a_plan_by_a_function_of_one_s_own() -> None:
    seen = []

    def stacked(buffers, alignment):
        seen.append((len(buffers), alignment))
        return naive(buffers, 2 * alignment)

    module = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(4)))
    manager = to_edge(export(module, (X,)))
    planning = MemoryPlanningPass(stacked, alignment=64)
    plan = manager.finish(FinishConfig(memory_planning_pass=planning)).memory_plan(kernels=False)
    assert seen == [(len(plan.buffers), 64)]
    assert all(buffer.offset % 128 == 0 for buffer in plan.buffers)
    assert plan.total > manager.finish().memory_plan(kernels=False).total


class Counts(torch.nn.Module):
    """Has a state of 128 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x.sum(0))
        return x + self.total


def test_states() -> None:
    manager = to_edge(export(Counts(), (X,)))

    def plan(planning: MemoryPlanningPass):
        finished = manager.finish(FinishConfig(memory_planning_pass=planning))
        return finished.memory_plan(kernels=False)

    with_states = plan(MemoryPlanningPass())
    without = plan(MemoryPlanningPass(alloc_mutable_buffers=False))
    (state,) = {b.names for b in with_states.buffers} - {b.names for b in without.buffers}
    assert state == ("total",)
    assert with_states.total == without.total + 128
    assert with_states.peak == without.peak + 128


def test_buffers_overlap_only_where_they_are_allowed_to() -> None:
    manager = to_edge(export(torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Sigmoid()), (X,)))

    def total(**fields: bool) -> int:
        planning = MemoryPlanningPass(lambda buffers, _: [0] * len(buffers), **fields)
        finished = manager.finish(FinishConfig(memory_planning_pass=planning))
        return finished.memory_plan(kernels=False).total

    assert total(allow_lifetime_and_storage_overlap=True) == X.numel() * 4
    with pytest.raises(PassError, match="overlaps"):
        total()


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        (
            {"memory_planning_algo": "greedy"},
            r"must be a function, got 'greedy'\n  use coreai_onnx.runtime.memory",
        ),
        ({"alignment": 0}, "alignment must be a positive integer, got 0"),
        ({"alignment": True}, "got True"),
        ({"share_mutable_buffers": True}, r"share_mutable_buffers has no counterpart: each method"),
    ],
)
def test_wrong_fields_are_errors(fields, fault) -> None:
    with pytest.raises(StagingError, match=fault):
        MemoryPlanningPass(**fields)
