"""Lowerings of torch's decomposed quantization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines quantized_decomposed

from tests.lower.checking import check, op_types

Q = torch.ops.quantized_decomposed
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)) * 3
INT8 = torch.tensor([-128, -8, -1, 0, 1, 127] * 4, dtype=torch.int8).reshape(4, 6)
UINT8 = torch.tensor([0, 1, 7, 8, 200, 255] * 4, dtype=torch.uint8).reshape(4, 6)
SCALE, ZERO = torch.tensor(0.0625), torch.tensor(3)
"""A power of two: torch multiplies by its reciprocal, onnxruntime divides by it."""
SCALES, ZEROS = torch.rand(4, 2) + 0.1, torch.randint(-9, 9, (4, 2), dtype=torch.int32)
OPSETS = pytest.mark.parametrize("opset", [18, 23])


def quantized(dtype: torch.dtype, low: int, high: int) -> Callable[..., Any]:
    return lambda x: Q.quantize_per_tensor(x, 0.0625, 3, low, high, dtype)


@OPSETS
@pytest.mark.parametrize(
    ("dtype", "low", "high", "ops"),
    [
        (torch.int8, -128, 127, ["QuantizeLinear"]),
        (torch.uint8, 0, 255, ["QuantizeLinear"]),
        (torch.int8, -8, 7, ["QuantizeLinear", "Clip"]),
        (torch.int16, -300, 300, ["Div", "Round", "Add", "Clip", "Cast"]),
    ],
)
def test_numbers_become_steps(
    dtype: torch.dtype, low: int, high: int, ops: list[str], opset: int
) -> None:
    model = check(quantized(dtype, low, high), torch.cat([X, 1e4 * X]), opset=opset)
    assert op_types(model) == ops


@OPSETS
def test_parameters_may_be_tensors(opset: int) -> None:
    def back_and_forth(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> Any:
        steps = Q.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
        return Q.dequantize_per_tensor.tensor(steps, scale, zero, -128, 127, torch.int8)

    check(back_and_forth, X, SCALE, ZERO, opset=opset)
    check(back_and_forth, X, SCALE.reshape(1), ZERO.reshape(1), opset=opset)
    ends = torch.tensor(-128), torch.tensor(127)
    check(
        lambda q, s, z: Q.dequantize_per_tensor.tensor2(q, s, z, *ends, torch.int8),
        *(INT8, SCALE, ZERO),
    )


@pytest.mark.parametrize(
    ("steps", "dtype", "out"),
    [
        (INT8, torch.int8, None),
        (UINT8, torch.uint8, torch.float32),
        (INT8, torch.int8, torch.float16),
        (INT8.int(), torch.int32, None),
    ],
)
def test_steps_become_numbers(
    steps: torch.Tensor, dtype: torch.dtype, out: torch.dtype | None
) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    model = check(
        lambda q: Q.dequantize_per_tensor(q, 0.07, 3, low, high, dtype, out_dtype=out), steps
    )
    assert ("DequantizeLinear" in op_types(model)) == (out != torch.float16 and steps.dtype == dtype
                                                       and dtype != torch.int32)  # fmt: skip


@OPSETS
@pytest.mark.parametrize("zeros", [ZEROS, ZEROS.float() + 0.5, None])
def test_groups_of_columns(zeros: torch.Tensor | None, opset: int) -> None:
    def function(q: torch.Tensor, scales: torch.Tensor, *zeros: torch.Tensor) -> Any:
        zero = zeros[0] if zeros else None
        return Q.dequantize_per_channel_group(
            q, scales, zero, -128, 127, torch.int8, 3, torch.float32
        )

    check(function, INT8, SCALES, *([] if zeros is None else [zeros]), opset=opset)


def test_a_group_wider_than_the_rows() -> None:
    def function(q: torch.Tensor, s: torch.Tensor, z: torch.Tensor) -> Any:
        return Q.dequantize_per_channel_group(q, s, z, 0, 255, torch.uint8, 32, torch.float16)

    check(function, UINT8, SCALES[:, :1], ZEROS[:, :1])


def test_groups_of_dynamic_rows() -> None:
    rows, columns = torch.export.Dim("rows"), torch.export.Dim("columns")
    check(
        lambda q, s: Q.dequantize_per_channel_group(
            q, s, None, -8, 7, torch.int8, 3, torch.float32
        ),
        *(INT8, SCALES),
        dynamic_shapes=({0: rows, 1: 3 * columns}, {0: rows, 1: columns}),
        others=[(torch.cat([INT8] * 2, 1)[:3], torch.rand(3, 4))],
    )


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
