"""What the memory plans of finished programs include."""

from __future__ import annotations

import pytest
import torch
from torch.export import export

from coreai_onnx.delegation import FinishConfig, MemoryPlanningPass, to_edge
from coreai_onnx.errors import StagingError
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


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        (
            {"memory_planning_algo": "greedy"},
            r"'greedy', not a function\n  use coreai_onnx.runtime.memory",
        ),
        ({"alignment": 0}, "the alignment is 0, not a positive number"),
        ({"alignment": True}, "the alignment is True"),
    ],
)
def test_wrong_fields_are_errors(fields, fault) -> None:
    with pytest.raises(StagingError, match=fault):
        MemoryPlanningPass(**fields)
