"""Each symbolic operation against Python's own arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch.utils._sympy import functions as f

from coreai_onnx.errors import ConversionError
from tests.lower.building import Building

A, B = (sympy.Symbol(n, integer=True) for n in "ab")
NUMBERS = [(7, 3), (-7, 3), (7, -3), (-7, -3), (6, 3), (-6, 3), (0, 5), (1, 1)]


def value_of(expression: Any, a: int, b: int) -> Any:
    """Compute an expression of two symbols in onnxruntime."""
    building = Building()
    for symbol, number in ((A, a), (B, b)):
        scalar = building.input(str(symbol), torch.int64, ())
        building.op.scope.dims.bind_scalar(symbol, scalar)
        del number
    (got,) = building.run([building.op.dim(expression)], [torch.tensor(a), torch.tensor(b)])
    return got.item()


@pytest.mark.parametrize(("a", "b"), NUMBERS)
@pytest.mark.parametrize(
    ("expression", "python"),
    [
        (A + B, lambda a, b: a + b),
        (A - 2 * B, lambda a, b: a - 2 * b),
        (A * B, lambda a, b: a * b),
        (f.FloorDiv(A, B), lambda a, b: a // b),
        (f.PythonMod(A, B), lambda a, b: a % b),
        (f.Max(A, B), max),
        (f.Min(A, B), min),
        (f.IntTrueDiv(A, B), lambda a, b: a / b),
        (f.CeilToInt(f.IntTrueDiv(A, B)), lambda a, b: -(-a // b)),
        (f.FloorToInt(f.IntTrueDiv(A, B)), lambda a, b: a // b),
        (f.TruncToInt(f.IntTrueDiv(A, B)), lambda a, b: int(a / b)),
        (f.RoundDecimal(f.IntTrueDiv(A, B), sympy.Integer(2)), lambda a, b: round(a / b, 2)),
        (f.RoundDecimal(A * 1.5, sympy.Integer(0)), lambda a, b: round(a * 1.5, 0)),
        (f.RoundDecimal(A * 25.0, sympy.Integer(-1)), lambda a, b: round(a * 25.0, -1)),
        (sympy.Abs(A), lambda a, b: abs(a)),
        (A**2, lambda a, b: a**2),
        (sympy.Eq(A, B), lambda a, b: a == b),
        (sympy.Ne(A, B), lambda a, b: a != b),
        (sympy.Lt(A, B), lambda a, b: a < b),
        (sympy.Ge(A, B), lambda a, b: a >= b),
        (sympy.And(A > 0, B > 0), lambda a, b: a > 0 and b > 0),
        (sympy.Or(A > 0, B > 0), lambda a, b: a > 0 or b > 0),
        (sympy.Not(sympy.And(A > 0, B > 0)), lambda a, b: not (a > 0 and b > 0)),
    ],
    ids=lambda x: "python" if callable(x) and not isinstance(x, sympy.Basic) else str(x),
)
def test_as_in_python(expression: Any, python: Callable[..., Any], a: int, b: int) -> None:
    assert value_of(expression, a, b) == python(a, b)


@pytest.mark.parametrize("a", [5, -5])
def test_shifts(a: int) -> None:
    assert value_of(f.LShift(A, B), a, 3) == a << 3
    assert value_of(f.RShift(A, B), a, 1) == a >> 1


def test_functions_of_floats() -> None:
    assert value_of(f.OpaqueUnaryFn_sqrt(A), 49, 0) == 7.0
    assert value_of(f.ToFloat(A), 3, 0) == 3.0
    assert value_of(f.RoundToInt(f.IntTrueDiv(A, B)), 5, 2) == round(5 / 2)


def test_numbers_are_doubles() -> None:
    assert value_of(f.TruncToInt(0.9 * f.ToFloat(A)), 20, 0) == 18


def test_what_has_no_form_is_said() -> None:
    with pytest.raises(ConversionError, match="gamma has no ONNX form"):
        value_of(sympy.gamma(A), 3, 1)
