"""A small module with its conversion, for the tests of blame."""

from __future__ import annotations

import torch

import coreai_onnx
from coreai_onnx.program import OnnxProgram


class Small(torch.nn.Module):
    """A norm, two linear layers, and a softmax of their sum."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = torch.nn.LayerNorm(8)
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return probabilities for [batch, 8]."""
        hidden = self.first(self.norm(x))
        hidden = torch.tanh(hidden) + x
        return self.second(hidden).softmax(-1)


def converted(dtype: torch.dtype = torch.float32) -> OnnxProgram:
    """Return the conversion of the module, with an example of three rows."""
    torch.manual_seed(1)
    return coreai_onnx.convert(Small().eval().to(dtype), (torch.randn(3, 8, dtype=dtype),))
