"""Lowerings of torchao's float8 ops that PT2E leaves whole."""

from __future__ import annotations

import pytest
import torch
import torchao.quantization.quant_primitives  # defines the ops

from tests.lower.checking import check

assert torchao
Q = torch.ops.torchao
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)) * 300


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("shape", [(), (1,), (4, 1), (4, 6), (2, 3), (4, 2)])
def test_blocks(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    scale = torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.25

    def function(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        steps = Q.quantize_affine_float8_non_decomposed(x, scale, dtype)
        return Q.dequantize_affine_float8_non_decomposed(steps, scale)

    check(function, X, scale)
