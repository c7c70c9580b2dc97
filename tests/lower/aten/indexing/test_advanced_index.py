"""How index tensors are resolved against their source."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch

from coreai_onnx.lower.aten.indexing.advanced_index import read, resolve
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.scope import Names, Scope
from coreai_onnx.lower.nodes.tensors import reduction_dtype
from coreai_onnx.lower.nodes.values import Value, set_dims

I64, BOOL = ir.DataType.INT64, ir.DataType.BOOL


def builder() -> OpBuilder:
    return OpBuilder(Scope(ir.Graph([], [], nodes=[], name="main"), Names()), 23)


def value(name: str, dtype: ir.DataType, *dims: int) -> Value:
    return set_dims(ir.Value(name=name, type=ir.TensorType(dtype)), dims)


def test_no_index_is_nothing() -> None:
    assert resolve(builder(), value("x", I64, 2, 3), [None, None]) is None


@pytest.mark.parametrize(
    ("places", "axes", "before"),
    [("i", (0,), 0), ("-i", (1,), 1), ("-ij", (1, 2), 1), ("i-j", (0, 2), 0)],
)
def test_the_block_stands_where_the_axes_were(
    places: str, axes: tuple[int, ...], before: int
) -> None:
    x = value("x", I64, 2, 3, 4)
    found = resolve(builder(), x, [None if p == "-" else value(p, I64, 5) for p in places])
    assert found is not None
    assert (found.axes, found.before, found.dims) == (axes, before, (5,))


def test_masks_take_one_axis_per_axis_of_theirs() -> None:
    op = builder()
    found = resolve(op, value("x", I64, 2, 3, 4), [value("m", BOOL, 2, 3)])
    assert found is not None
    assert (found.axes, found.rest, found.dims) == ((0, 1), (2,), None)


def test_one_index_is_one_gather() -> None:
    op = builder()
    found = resolve(op, value("x", I64, 2, 3, 4), [None, value("i", I64, 5, 6)])
    assert found is not None
    read(op, found)
    assert [n.op_type for n in op.scope.graph] == ["Gather"]


def test_narrow_floats_are_reduced_in_float32() -> None:
    assert reduction_dtype(torch.bfloat16) == torch.float32
    assert reduction_dtype(torch.float64) == torch.float64
    assert reduction_dtype(torch.bool) == torch.int32
