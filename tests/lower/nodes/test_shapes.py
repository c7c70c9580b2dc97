"""Symbolic sizes: read once, named as the user names them, computed exactly."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
from torch.export import Dim

from coreai_onnx.errors import ConversionError
from coreai_onnx.lower.nodes import shapes
from tests.lower.building import Building
from tests.lower.checking import check, lower_module

BATCH, SEQ = Dim("batch"), Dim("seq")
S, T = (sympy.Symbol(n, integer=True, positive=True) for n in "st")


def test_names_of_the_users_dims_are_kept() -> None:
    model = lower_module(
        lambda x, y: x @ y, (torch.ones(3, 5), torch.ones(5, 2)), ({0: BATCH, 1: SEQ}, {0: SEQ})
    )
    found = [[str(d) for d in v.shape] for v in (*model.graph.inputs, *model.graph.outputs)]
    assert found == [["batch", "seq"], ["seq", "2"], ["batch", "2"]]


def test_a_derived_dim_is_read_back() -> None:
    """An input of 2·seq + 1 rows: seq itself is worked out from it."""

    def function(x: torch.Tensor) -> Any:
        half = (x.shape[0] - 1) // 2
        return x[:half], x.new_ones(half, 2), x[half:]

    check(
        function,
        torch.randn(7, 4),
        dynamic_shapes=({0: 2 * Dim("seq", min=2, max=20) + 1},),
        others=[(torch.randn(5, 4),), (torch.randn(31, 4),)],
    )


def test_sums_and_products_of_dims() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        n, m = x.shape[0], y.shape[0]
        return torch.cat([x, y]).reshape(-1), x.new_zeros(n * m + 3), y.new_full((n,), m / n)

    check(
        function,
        torch.randn(3, 2),
        torch.randn(5, 2),
        dynamic_shapes=({0: Dim("n")}, {0: Dim("m")}),
        others=[(torch.randn(7, 2), torch.randn(2, 2))],
    )


def test_one_size_is_read_once() -> None:
    building = Building()
    building.input("x", torch.float32, (S, 4))
    first, second = building.op.shape([S, 1]), building.op.shape([2, S])
    assert building.op_types == ["Shape", "Concat", "Concat"]
    assert shapes.element(building.op, S) is shapes.element(building.op, S)
    got = building.run([first, second, building.op.dim(S * 2)], [torch.ones(6, 4)])
    assert [g.tolist() for g in got] == [[6, 1], [2, 6], 12]


def test_known_sizes_make_no_nodes() -> None:
    building = Building()
    assert building.op.shape([3, 4]).const_value.numpy().tolist() == [3, 4]
    assert building.op_types == []


@pytest.mark.parametrize("size", [3, 10])
def test_a_linear_size_is_solved_for_its_symbol(size: int) -> None:
    building = Building()
    building.input("x", torch.float32, (3 * S + 1,))
    (got,) = building.run([building.op.dim(S)], [torch.ones(3 * size + 1)])
    assert got == size


def test_an_unknown_size_is_an_error_with_its_name() -> None:
    building = Building()
    with pytest.raises(ConversionError, match="symbolic size t is used"):
        building.op.dim(T)
