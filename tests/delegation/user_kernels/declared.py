"""Composites of a user's own, and modules that compute them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from coreai_onnx import Kernel, kernel
from coreai_onnx.composites import Attribute, Composite, Input
from coreai_onnx.delegation.user_kernels.compiling import compiler, onnxruntime_headers
from coreai_onnx.errors import ToolchainError

HERE = Path(__file__).parent


@pytest.fixture
def toolchain() -> None:
    """Skip where nothing can be compiled."""
    try:
        compiler(), onnxruntime_headers()
    except ToolchainError as error:
        pytest.skip(str(error))


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def clipped_swiglu(gate: torch.Tensor, up: torch.Tensor, *, limit: float = 7.0) -> torch.Tensor:
    """Return ``silu(min(gate, limit)) * clamp(up, -limit, limit)``."""
    g, u = _wide(gate), _wide(up)
    most = torch.as_tensor(limit, dtype=g.dtype)
    g, u = torch.minimum(g, most), torch.maximum(torch.minimum(u, most), -most)
    return (torch.nn.functional.silu(g) * u).to(gate.dtype)


CLIPPED_SWIGLU = Composite(
    name="clipped_swiglu",
    inputs=(Input("gate"), Input("up")),
    outputs=("output",),
    attributes=(Attribute("limit", "float", 7.0),),
    reference=clipped_swiglu,
    formula="silu(min(gate, limit)) * clamp(up, -limit, limit)",
)


class ClippedSwiGLU(torch.nn.Module):
    """The module of the composite."""

    def __init__(self, limit: float = 7.0) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return clipped_swiglu(gate, up, limit=self.limit)


SCALED = Composite(
    name="scaled",
    inputs=(Input("x"),),
    outputs=("output",),
    attributes=(Attribute("factor", "float", 2.0),),
    reference=lambda x, factor=2.0: (_wide(x) * factor).to(x.dtype),
    formula="x * factor",
)


def _gathered(
    table: torch.Tensor, rows: torch.Tensor, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    chosen = _wide(table)[rows.long()]
    if bias is not None:
        chosen = chosen + _wide(bias)
    return chosen.to(table.dtype), chosen.sum(-1).to(table.dtype)


def _in_range(inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    return {**inputs, "rows": inputs["rows"] % max(len(inputs["table"]), 1)}


GATHERED = Composite(
    name="gathered",
    inputs=(
        Input("table", dims="N D"),
        Input("rows", dtype="index", dims="M"),
        Input("bias", optional=True, dims="~D"),
    ),
    outputs=("output", "sums"),
    reference=_gathered,
    formula="table[rows] + bias, and its sums over the last axis",
    output_dims=("M D", "M"),
    admissible=_in_range,
)


class Gathered(torch.nn.Module):
    """A module of the composite ``gathered``, with the table and the bias as weights."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(6, 5))
        self.bias = torch.nn.Parameter(torch.randn(5)) if bias else None

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return _gathered(self.table, rows, self.bias)


@functools.cache
def made(composite: Composite) -> Kernel:
    """Return the kernel of one of these composites, which is checked once."""
    return kernel(composite, HERE / f"{composite.name}.cc")
