"""Where symbols can be read."""

from __future__ import annotations

import sympy
import torch

from coreai_onnx.lower.nodes.dim_table import Axis, DimTable
from tests.lower.building import Building

S, T = (sympy.Symbol(n, integer=True, positive=True) for n in "st")


def test_an_inner_table_sees_the_outer_one_and_not_the_reverse() -> None:
    building = Building()
    x = building.input("x", torch.float32, (S, 4))
    outer = building.op.scope.dims
    inner = DimTable(outer)
    inner.bind_axis(T, x, 1)
    assert inner.knows(S)
    assert inner.knows(T)
    assert not outer.knows(T)
    inner.bind_axis(S, x, 1)
    assert inner.find(S) == outer.find(S)


def test_the_first_axis_of_a_symbol_is_kept() -> None:
    building = Building()
    x, y = (building.input(n, torch.float32, (4, S)) for n in "xy")
    assert building.op.scope.dims.find(S) == Axis(x, 1)
    assert x is not y


def test_a_linear_size_gives_its_symbol() -> None:
    building = Building()
    building.input("x", torch.float32, (3 * S + 1,))
    table = building.op.scope.dims
    assert table.find(S) is None
    assert table.knows(S)
    (size,) = table.find_derived(S).free_symbols
    assert str(size) == "x.axis0"


def test_values_of_an_outer_table_are_found_inside() -> None:
    building = Building()
    outer = building.op.scope.dims
    inner, value = DimTable(outer), building.op.const([1])
    inner.keep_vector(T, value)
    outer.keep_scalar(S, value)
    assert inner.find_vector(T) is inner.find_scalar(S) is value
    assert outer.find_vector(T) is None
