"""Dtypes, dims and torch's promotion, against torch itself."""

from __future__ import annotations

import itertools

import onnx_ir as ir
import pytest
import sympy
import torch

from coreai_onnx.lower.nodes import values
from coreai_onnx.lower.nodes.values import (
    as_dim,
    dims_of,
    dtype_of,
    ir_dtype,
    is_condition,
    maybe_dims,
    numel,
    promoted_dtype,
    scalar_dtype,
    set_dims,
    torch_dtype,
    wrap,
    wrap_all,
)

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
)  # fmt: skip
S = sympy.Symbol("s", integer=True, positive=True)


def value(dtype: torch.dtype, rank: int) -> ir.Value:
    x = ir.Value(name="x", type=ir.TensorType(ir_dtype(values.real_part(dtype))))
    dims = (2,) * rank
    if dtype.is_complex:
        x.meta["complex"] = True
        dims = (*dims, 2)
    return set_dims(x, dims)


def representable(dtype: torch.dtype) -> torch.dtype:
    """Half precision pairs, which torch itself hardly computes with, are held in float32."""
    return torch.complex64 if dtype == torch.complex32 else dtype


@pytest.mark.parametrize("ranks", [(1, 1), (0, 1), (1, 0), (0, 0)])
def test_promotion_of_tensors(ranks: tuple[int, int]) -> None:
    for first, second in itertools.product(DTYPES, DTYPES):
        a, b = (torch.ones((2,) * r, dtype=d) for r, d in zip(ranks, (first, second), strict=True))
        got = promoted_dtype(value(first, ranks[0]), value(second, ranks[1]))
        assert got == representable(torch.result_type(a, b)), (first, second)


@pytest.mark.parametrize("number", [True, 2, 2.5, 2 + 1j])
@pytest.mark.parametrize("rank", [0, 1])
def test_promotion_with_numbers(number: complex, rank: int) -> None:
    for dtype in DTYPES:
        expected = representable(torch.result_type(torch.ones((2,) * rank, dtype=dtype), number))
        assert promoted_dtype(value(dtype, rank), number) == expected, dtype


@pytest.mark.parametrize("dtype", DTYPES[:10])
def test_dtypes_go_there_and_back(dtype: torch.dtype) -> None:
    assert torch_dtype(ir_dtype(dtype)) == dtype


def test_a_dtype_onnx_lacks() -> None:
    with pytest.raises(ValueError, match="qint8"):
        ir_dtype(torch.qint8)


def test_complex_values_hide_their_last_axis() -> None:
    x = value(torch.complex128, 1)
    assert dims_of(x) == (2,)
    assert dtype_of(x) == torch.complex128
    assert x.shape is not None
    assert len(x.shape) == 2


def test_symbols_are_numbers_and_comparisons_are_not() -> None:
    """sympy counts a symbol among its booleans too."""
    assert scalar_dtype(S) == torch.int64
    assert scalar_dtype(S / 2) == torch.float32
    assert scalar_dtype(S > 3) == torch.bool
    assert is_condition(S > 3)
    assert not is_condition(S)


def test_dims() -> None:
    assert as_dim(sympy.Integer(3)) == 3
    assert isinstance(as_dim(sympy.Integer(3)), int)
    assert as_dim(True) == 1
    assert numel((2, S, 3)) == 6 * S
    assert numel(()) == 1
    with pytest.raises(TypeError, match="not a dim"):
        as_dim("3")
    with pytest.raises(ValueError, match="no known shape"):
        dims_of(ir.Value(name="x"))
    assert maybe_dims(ir.Value(name="x")) is None


@pytest.mark.parametrize(
    ("axes", "rank", "expected"),
    [(None, 2, [0, 1]), ([], 2, [0, 1]), (-1, 3, [2]), ([1, -3], 3, [0, 1]), ([0], 0, [])],
)
def test_axes(axes: list[int] | int | None, rank: int, expected: list[int]) -> None:
    assert wrap_all(axes, rank) == expected
    assert wrap(-1, 0) == 0
