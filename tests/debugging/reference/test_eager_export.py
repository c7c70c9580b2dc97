"""The exported program against the eager module."""

from __future__ import annotations

import torch

from coreai_onnx.debugging.reference.eager_export import export_faults


class Pair(torch.nn.Module):
    def __init__(self, error: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.error = error

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.seen += 1
        return x.exp() + self.seen, x.sin() + self.error


def test_each_wrong_output_of_each_call() -> None:
    from coreai_onnx.export.functionalize.decompositions import functional

    x = torch.randn(5)
    program = functional(torch.export.export(Pair(), (x,)))
    calls = [((x,), {}), ((x + 1,), {})]
    assert not list(export_faults(Pair(), program, calls))
    faults = list(export_faults(Pair(0.1), program, calls))
    assert [index for index, _, _ in faults] == [0, 1]
    assert len({name for _, name, _ in faults}) == 1
    assert all(judgment.wrong == 5 for _, _, judgment in faults)
