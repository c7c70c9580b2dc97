"""Lowerings of ``coreai::quantize`` and ``coreai::dequantize``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchao.quantization.quant_primitives  # defines the ops

from coreai_onnx.composites import activation_modules  # noqa: F401 - it defines the ops
from tests.lower.checking import check, op_types

Q = torch.ops.coreai
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)) * 3
ONE, ROWS = torch.tensor(0.0625), torch.tensor([0.25, 0.5, 2, 1])
COLUMNS = torch.rand(6) + 0.1
OPSETS = pytest.mark.parametrize("opset", [18, 23])


@OPSETS
@pytest.mark.parametrize(("scale", "axis"), [(ONE, 0), (ROWS, 0), (ROWS, -2), (COLUMNS, 1)])
@pytest.mark.parametrize("minimum", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    ("dtype", "held"),
    [
        (torch.int8, torch.int8),
        (torch.uint8, torch.uint8),
        (torch.int4, torch.int8),
        (torch.uint3, torch.uint8),
    ],
)
def test_back_and_forth(
    dtype: torch.dtype,
    held: torch.dtype,
    zeros: bool,
    minimum: bool,
    scale: torch.Tensor,
    axis: int,
    opset: int,
) -> None:
    if zeros and minimum:
        return
    zero = torch.ones_like(scale).to(held) if zeros else None
    least = -torch.ones_like(scale) if minimum else None

    def function(x: torch.Tensor) -> Any:
        codes = Q.quantize(x, scale, dtype, zero, least, axis)
        return codes, Q.dequantize(codes, scale, zero, least, axis, dtype)

    model = check(function, X, opset=opset)
    assert ("QuantizeLinear" in op_types(model)) != minimum


@pytest.mark.parametrize(("scale", "axis"), [(ONE, 0), (COLUMNS, -1)])
@pytest.mark.parametrize("target", [None, torch.float16])
def test_float8(scale: torch.Tensor, axis: int, target: torch.dtype | None) -> None:
    def function(x: torch.Tensor) -> Any:
        codes = Q.quantize(x * 100, scale, torch.float8_e4m3fn, None, None, axis)
        return Q.dequantize(codes, scale, None, None, axis, None, target)

    check(function, X)


def test_other_dtypes() -> None:
    check(lambda x: Q.quantize(x, ONE.half(), torch.int16), X.half())
    check(lambda q: Q.dequantize(q, ONE.half()), (X * 30).to(torch.int8))
    check(lambda q: Q.dequantize(q, ONE, output_dtype=torch.float16), (X * 30).to(torch.int8))


assert torchao
CODES = torch.ops.torchao
BLOCKS = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)) * 300


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("shape", [(), (1,), (4, 1), (4, 6), (2, 3), (4, 2)])
def test_blocks(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    scale = torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.25

    def function(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        steps = CODES.quantize_affine_float8_non_decomposed(x, scale, dtype)
        return CODES.dequantize_affine_float8_non_decomposed(steps, scale)

    check(function, BLOCKS, scale)
