from __future__ import annotations

import torch

from coreai_onnx import get_decomp_table
from coreai_onnx.lower.walk.registry import builtin_lowering, is_whole

aten = torch.ops.aten


def test_the_table_is_fresh_and_without_what_is_lowered_whole() -> None:
    table = get_decomp_table()
    default = torch.export.default_decompositions()
    assert table is not get_decomp_table()
    whole = {str(op) for op in default} - {str(op) for op in table}
    assert all(is_whole(name) for name in whole)
    assert len(whole) == 17
    assert all(builtin_lowering(name) for name in whole)
    table.clear()
    assert get_decomp_table()


def test_composites_survive_decomposition() -> None:
    class Norms(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.silu(self.norm(x))

    program = torch.export.export(Norms(), (torch.randn(2, 4),))
    decomposed = program.run_decompositions(get_decomp_table())
    targets = [n.target for n in decomposed.graph.nodes if n.op == "call_function"]
    assert targets == [aten.layer_norm.default, aten.silu.default]
