"""torch's nodes belong to the nodes of the file."""

from __future__ import annotations

import torch

from coreai_onnx.debugging.profiling.torch_times import TorchTimes
from coreai_onnx.runtime.profile.timing import time_interleaved
from tests.debugging.small_reference import converted


def test_nodes_of_torch_have_nodes_of_the_file() -> None:
    program = converted()
    side = TorchTimes(program.record(), None)
    timings = time_interleaved(side.calls(), repeats=2, warmup=0)
    execution = side.execution(program.model, timings, 2)
    ops = {node.ran: node.place.op for node in execution.nodes}
    assert ops["aten.tanh.default"] == "Tanh"
    assert ops["aten.softmax.int"] in ("Softmax", "ai.coreai::softmax")
    assert ops["aten.layer_norm.default"] == "ai.coreai::layer_norm"
    assert all(node.median > 0 for node in execution.nodes)
    assert all(
        node.place.where.source.startswith("small_reference.py") or "/" in node.place.where.source
        for node in execution.nodes
    )


def test_runs_do_not_change_the_reference() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x * self.count

    module = Counter()
    side = TorchTimes(module, (torch.ones(2),))
    time_interleaved(side.calls(), repeats=2, warmup=0)
    assert module.count == 0
    exported = torch.export.export(module, (torch.ones(2),))
    side = TorchTimes(exported, None)
    time_interleaved(side.calls(), repeats=2, warmup=0)
    assert exported.state_dict["count"] == 0
