"""Operands brought to one dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sympy
import torch
import torch.nn.functional as F

from coreai_onnx.lower.nodes.promotion import as_value, promote, promote_to_float
from coreai_onnx.lower.nodes.values import dtype_of
from tests.lower.building import Building
from tests.lower.checking import check

S = sympy.Symbol("s", integer=True, positive=True)


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ((torch.int32, torch.float16), torch.float16),
        ((torch.uint8, torch.int8), torch.int16),
        ((torch.bool, torch.int64), torch.int64),
        ((torch.bfloat16, torch.float16), torch.float32),
    ],
)
def test_both_operands_are_cast(dtypes: tuple[Any, Any], expected: torch.dtype) -> None:
    building = Building()
    operands = [building.input(n, d, (2,)) for n, d in zip("xy", dtypes, strict=True)]
    assert [dtype_of(v) for v in promote(building.op, *operands)] == [expected] * 2


def test_operands_of_the_result_type_stay() -> None:
    building = Building()
    x = building.input("x", torch.float16, (2,))
    first, second = promote(building.op, x, 2.5)
    assert first is x
    assert second.const_value.numpy() == np.float16(2.5)


def test_integers_become_the_default_float() -> None:
    building = Building()
    x = building.input("x", torch.int64, (2,))
    assert [dtype_of(v) for v in promote_to_float(building.op, x, 2)] == [torch.float32] * 2
    y = building.input("y", torch.float64, (2,))
    assert dtype_of(promote_to_float(building.op, y)[0]) == torch.float64


def test_a_symbolic_number() -> None:
    building = Building()
    x = building.input("x", torch.float32, (S,))
    total = building.op.Add(*promote(building.op, x, S * 2))
    (got,) = building.run([total], [torch.zeros(3)])
    assert got.tolist() == [6.0] * 3
    assert dtype_of(as_value(building.op, S, torch.int32)) == torch.int32


def test_a_dtype_that_is_asked_for() -> None:
    building = Building()
    x = building.input("x", torch.float32, (2,))
    (made,) = promote(building.op, x, dtype=torch.complex128)
    assert made.dtype.name == "DOUBLE"


X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).mul(8).round()
OTHERS = (torch.float64, torch.float16, torch.int64, torch.bool)
OPERANDS = {
    "outer": (torch.outer, X[0], X[:, 1]),
    "ger": (torch.ger, X[0], X[:, 1]),
    "diagonal_scatter": (torch.diagonal_scatter, X, X[0, :4]),
    "select_scatter": (lambda x, y: torch.select_scatter(x, y, 0, 1), X, X[0]),
    "slice_scatter": (lambda x, y: torch.slice_scatter(x, y, 0, 1, 3), X, X[:2]),
    "strided slice_scatter": (lambda x, y: torch.slice_scatter(x, y, 0, 0, 4, 2), X, X[:2]),
    "as_strided_scatter": (lambda x, y: torch.as_strided_scatter(x, y, (3,), (2,)), X, X[0, :3]),
    "index_put": (lambda x, y: x.index_put((x > 1,), y), X, X[0, 0]),
}
"""Functions that take two tensors of any dtypes, by the op they call."""
BIASED = {
    "linear": lambda x, y: F.linear(x[None], X, y[0]),
    "conv_transpose": lambda x, y: F.conv_transpose1d(x[None], X[:, :, None], y),
}
"""Functions whose bias may have another dtype than the input."""


@pytest.mark.parametrize("other", OTHERS, ids=str)
@pytest.mark.parametrize("name", OPERANDS)
def test_tensors_of_two_dtypes(name: str, other: torch.dtype) -> None:
    function, x, y = OPERANDS[name]
    check(function, x, y.to(other))
    check(function, x.to(other), y)


@pytest.mark.parametrize("other", OTHERS, ids=str)
@pytest.mark.parametrize("name", BIASED)
def test_a_bias_of_another_dtype(name: str, other: torch.dtype) -> None:
    check(BIASED[name], X, X[0].to(other))


def test_probabilities_of_another_dtype() -> None:
    shares = X.softmax(1)
    for other in (torch.float64, torch.float16):
        check(F.cross_entropy, X, shares.to(other))
    check(F.cross_entropy, X.double(), shares)
