"""Operands brought to one dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sympy
import torch

from coreai_onnx.lower.promotion import as_value, promote, promote_to_float
from coreai_onnx.lower.values import dtype_of
from tests.lower.building import Building

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
