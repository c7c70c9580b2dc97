"""The builder of lowerings: dims, and operands with symbolic sizes."""

from __future__ import annotations

import pytest
import sympy
import torch

from coreai_onnx.lower.nodes.values import dims_of, set_dims
from tests.lower.building import Building

S = sympy.Symbol("s", integer=True, positive=True)


def test_casts_reshapes_and_transposes_that_do_nothing_make_no_node() -> None:
    building = Building()
    x = building.input("x", torch.float32, (S, 4))
    op = building.op
    assert op.cast(x, torch.float32) is x
    assert op.reshape(x, [S, 4]) is x
    assert op.transpose(x, [0, 1]) is x
    assert op.expand(x, [S, 4]) is x
    assert building.op_types == []


@pytest.mark.parametrize("rows", [1, 6])
def test_reshape_spares_dim_arithmetic(rows: int) -> None:
    """A kept leading dim is 0 and one unknown dim is -1: no Shape, no Concat."""
    building = Building()
    x = building.input("x", torch.float32, (S, 4))
    kept = building.op.reshape(x, [S, 2, 2])
    moved = building.op.reshape(x, [2, S, 2])
    assert building.op_types == ["Reshape", "Reshape"]
    got = building.run([kept, moved], [torch.arange(rows * 4.0).reshape(rows, 4)])
    assert [g.shape for g in got] == [(rows, 2, 2), (2, rows, 2)]


def test_reshape_to_nothing() -> None:
    building = Building()
    x = building.input("x", torch.float32, (0, S))
    (got,) = building.run([building.op.reshape(x, [S, 0, 3])], [torch.zeros(0, 5)])
    assert got.shape == (5, 0, 3)


@pytest.mark.parametrize(("start", "end", "step"), [(1, 4, 1), (-3, 99, 2), (3, -9, -1)])
def test_slices_as_in_python(start: int, end: int, step: int) -> None:
    building = Building()
    x = building.input("x", torch.float32, (5, S))
    data = torch.arange(10.0).reshape(5, 2)
    (got,) = building.run([building.op.slice(x, 0, start, end, step)], [data])
    assert got.tolist() == data[range(5)[start:end:step]].tolist()


def test_a_slice_up_to_a_symbolic_size() -> None:
    building = Building()
    x = building.input("x", torch.float32, (5, S))
    part = building.op.ReduceSum(building.op.slice(x, 0, 0, S), keepdims=0)
    (got,) = building.run([set_dims(part, ())], [torch.arange(10.0).reshape(5, 2)])
    assert got == 0 + 1 + 2 + 3


def test_symbolic_operands() -> None:
    building = Building()
    x = building.input("x", torch.float32, (S,))
    scaled = building.op.Div(x, S)
    tiled = building.op.Expand(scaled, [S, S])
    assert dims_of(tiled) == (S, S)
    (got,) = building.run([tiled], [torch.tensor([2.0, 4.0])])
    assert got.tolist() == [[1.0, 2.0]] * 2
