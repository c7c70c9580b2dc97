"""What the memory plans of finished programs include."""

from __future__ import annotations

import pytest
import torch
from torch.export import export

from coreai_onnx.delegation import FinishConfig, MemoryPlanningPass, to_edge
from coreai_onnx.errors import StagingError

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
