"""The products of experts without loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import coreai_onnx
from coreai_onnx.composite_ops import GatherMM
from coreai_onnx.targets.coverage import gaps
from coreai_onnx.targets.providers import WEBGPU
from tests.support.tolerances import assert_close

EXPERTS, TOKENS = 4, torch.export.Dim("tokens", max=64)


class Products(torch.nn.Module):
    """Two products, as those of an expert: the second has a row for each choice."""

    def __init__(self, *, transposed: bool) -> None:
        super().__init__()
        shapes = ((6, 8), (8, 6)) if transposed else ((8, 6), (6, 8))
        self.up, self.down = (torch.nn.Parameter(torch.randn(EXPERTS, *one)) for one in shapes)
        self.product = GatherMM(transpose_rhs=transposed)

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        y = self.product(x[:, None, None], self.up, rhs_indices=chosen)
        return self.product(y, self.down, rhs_indices=chosen)


class Routed(Products):
    """The experts are those that the scores are largest for."""

    def forward(self, x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return super().forward(x, scores.topk(2, dim=-1)[1])


def arguments(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(tokens, 8), torch.randn(tokens, EXPERTS)


@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("transposed", [False, True])
def test_experts(transposed: bool, opset: int) -> None:
    torch.manual_seed(0)
    model = Routed(transposed=transposed).eval()
    program = coreai_onnx.convert(
        model, arguments(5), dynamic_shapes=({0: TOKENS}, {0: TOKENS}), opset_version=opset
    )
    program.optimize(target="webgpu")
    ops = {node.op_type for node in program.model.graph}
    assert "If" in ops
    assert not {"Loop", "NonZero", "ConcatFromSequence"} & ops
    assert [gap for gap in gaps(program.model, WEBGPU) if not gap.declared] == []
    # Inlining leaves these names as they are: they must not be those of another value.
    inner = [node for graph in program.model.graph.subgraphs() for node in graph]
    assert inner
    assert all(v.name.startswith("experts_") for node in inner for v in node.outputs)
    # One token has as many choices as there are copies to make; seven are multiplied by all.
    for tokens in (1, 2, 7):
        given = arguments(tokens)
        (actual,) = program.run(*given, kernels=False)
        assert_close(actual, model(*given).detach().numpy())
    assert np.asarray(actual).shape == (7, 2, 1, 8)


def test_other_calls_keep_their_body() -> None:
    class Rows(torch.nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            return GatherMM()(x, w, lhs_indices=rows)

    given = torch.randn(3, 2, 4), torch.randn(5, 4, 6), torch.tensor([0, 2, 1, 1, 0])
    program = coreai_onnx.convert(Rows().eval(), given).optimize(target="webgpu")
    assert "If" not in {node.op_type for node in program.model.graph}
    assert_close(program.run(*given)[0], Rows()(*given).numpy())
