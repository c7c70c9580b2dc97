"""``flex_attention`` against torch's eager form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from coreai_onnx.export.functionalize.decompositions import functional
from coreai_onnx.lower import Context, IONames, ProgramLowering
from tests.lower.checking import check, run_model
from tests.support.tolerances import assert_close


def test_a_score_modification_with_grouped_heads() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(
            q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1 + h, enable_gqa=True
        )

    k, v = torch.randn(2, 1, 2, 8, 4)
    check(function, torch.randn(1, 4, 8, 4), k, v)


@pytest.mark.parametrize("window", [1, 3])
def test_a_block_mask_with_a_captured_tensor(window: int) -> None:
    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("slopes", torch.tensor([0.5, 0.25]))

        def forward(self, q: torch.Tensor) -> torch.Tensor:
            mask = create_block_mask(
                lambda b, h, i, j: (i >= j) & (i - j <= window), None, None, 8, 8, device="cpu"
            )
            return flex_attention(
                q, q, q, score_mod=lambda s, b, h, i, j: s * self.slopes[h], block_mask=mask
            )

    q = torch.randn(1, 2, 8, 4)
    module = Masked()
    program = functional(torch.export.export(module, (q,)))
    assert any("flex_attention" in str(n.target) for n in program.graph.nodes)
    model = ProgramLowering(program, Context(opset=23), IONames()).run().model([], "main")
    assert_close(run_model(model, (q,))[0], module(q))
