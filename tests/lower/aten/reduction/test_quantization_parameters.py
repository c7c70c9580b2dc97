"""Lowerings of the ops that choose scales and zero points."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines quantized_decomposed

from tests.lower.checking import check, op_types

Q = torch.ops.quantized_decomposed
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)) * 3
EPS = torch.finfo(torch.float32).eps
OPSETS = pytest.mark.parametrize("opset", [18, 23])
INPUTS = [X, X.abs(), -X.abs(), torch.zeros(2, 3), X / 1e5]


@OPSETS
@pytest.mark.parametrize("x", INPUTS)
@pytest.mark.parametrize(
    ("low", "high", "dtype", "eps"),
    [
        (-128, 127, torch.int8, 2**-12),  # of XNNPACK's quantizer
        (-127, 127, torch.int8, EPS),
        (0, 255, torch.uint8, 2**-12),
    ],
)
@pytest.mark.parametrize("choose", [Q.choose_qparams, Q.choose_qparams_symmetric])
def test_tensors(
    choose: Any, low: int, high: int, dtype: torch.dtype, eps: float, x: torch.Tensor, opset: int
) -> None:
    def function(x: torch.Tensor) -> Any:
        scale, zero = choose.tensor(x, low, high, eps, dtype)
        steps = Q.quantize_per_tensor.tensor(x, scale, zero, low, high, dtype)
        back = Q.dequantize_per_tensor.tensor(steps, scale, zero, low, high, dtype)
        return scale.float(), zero, back

    check(function, x, opset=opset)


@pytest.mark.parametrize("x", [X, X.abs(), -X.abs()])
def test_unsigned_bytes_have_an_op(x: torch.Tensor) -> None:
    def function(x: torch.Tensor) -> Any:
        scale, zero = Q.choose_qparams.tensor(x, 0, 255, EPS, torch.uint8)
        return scale.float(), zero

    assert "DynamicQuantizeLinear" in op_types(check(function, x))
    for dtype in (torch.float16, torch.bfloat16):
        narrow = torch.tensor([-1, 0.5, 254], dtype=dtype)  # its scale is exactly 1
        assert "DynamicQuantizeLinear" not in op_types(check(function, narrow))


def test_zeros_stay_zeros() -> None:
    """The op has no lower limit of the scale, which is seen in the scale only."""

    def function(x: torch.Tensor) -> Any:
        scale, zero = Q.choose_qparams.tensor(x, 0, 255, EPS, torch.uint8)
        steps = Q.quantize_per_tensor.tensor(x, scale, zero, 0, 255, torch.uint8)
        return Q.dequantize_per_tensor.tensor(steps, scale, zero, 0, 255, torch.uint8)

    check(function, torch.zeros(2, 3))


@OPSETS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rows_with_scales_around_zero(dtype: torch.dtype, opset: int) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        scales, zeros = Q.choose_qparams_per_token(x, torch.int8)
        steps = Q.quantize_per_token(x, scales, zeros, -128, 127, torch.int8)
        return Q.dequantize_per_token(steps, scales, zeros, -128, 127, torch.int8, torch.float32)

    check(function, X.to(dtype), opset=opset)
    check(function, torch.stack([X, torch.zeros_like(X)]).to(dtype), opset=opset)


@OPSETS
def test_rows_with_scales_of_their_own(opset: int) -> None:
    """The activations of torchao's 8da4w."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scales, zeros = Q.choose_qparams_per_token_asymmetric(x, torch.int8)
        steps = Q.quantize_per_token(x, scales, zeros, -128, 127, torch.int8)
        back = Q.dequantize_per_token(steps, scales, zeros, -128, 127, torch.int8, torch.float32)
        return scales, zeros, steps, back

    check(function, X, opset=opset)
    check(function, torch.stack([X.abs(), -X.abs(), torch.zeros_like(X)]), opset=opset)
