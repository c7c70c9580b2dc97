"""Which dtype an op is computed in, and how its axes are counted."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch

from coreai_onnx.lower.nodes.values import set_dims
from coreai_onnx.targets.legalize import compute_dtype, kernel_dtypes
from tests.lower.building import Building

D = ir.DataType


@pytest.mark.parametrize(
    ("op_type", "variable", "dtype", "expected"),
    [
        ("Add", "T", D.FLOAT, None),
        ("Add", "T", D.BFLOAT16, D.FLOAT),
        ("Add", "T", D.FLOAT16, None),
        ("MatMul", "T", D.BFLOAT16, D.FLOAT),
        ("Relu", "T", D.INT64, D.DOUBLE),
        ("Sin", "T", D.DOUBLE, None),
        ("Acos", "T", D.DOUBLE, D.FLOAT),
        ("NotAnOp", "T", D.BOOL, None),
    ],
)
def test_compute_dtype(
    op_type: str, variable: str, dtype: ir.DataType, expected: ir.DataType | None
) -> None:
    assert compute_dtype(op_type, 23, variable, dtype) == expected


@pytest.mark.parametrize(("opset", "expected"), [(18, D.FLOAT), (20, None)])
def test_float16_is_cast_where_the_op_does_not_have_it(
    opset: int, expected: ir.DataType | None
) -> None:
    assert compute_dtype("IsInf", opset, "T1", D.FLOAT16) == expected
    assert compute_dtype("Acos", opset, "T", D.FLOAT16) is None  # onnxruntime casts it


def test_a_wider_dtype_has_a_kernel_and_loses_nothing_where_one_can() -> None:
    """Every choice is a dtype the op takes; a lossy one only where no exact one is."""
    exact = {D.BFLOAT16: {D.FLOAT}, D.BOOL: {D.UINT8, D.INT32, D.INT64, D.FLOAT}}
    for op_type, variable in (("Where", "T"), ("Max", "T"), ("Mul", "T"), ("Less", "T")):
        known = kernel_dtypes(op_type, 23, variable)
        assert known
        for dtype, wide in exact.items():
            chosen = compute_dtype(op_type, 23, variable, dtype)
            assert chosen is None or chosen in wide


def test_kernels_differ_between_opsets() -> None:
    assert kernel_dtypes("Add", 13, "T") != kernel_dtypes("Add", 14, "T")


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceProd", "ReduceMax", "ReduceL2"])
def test_axes_from_the_end_of_an_empty_tensor(op_type: str) -> None:
    """onnxruntime itself reduces no axis of an empty tensor where the axes are negative."""
    building = Building()
    x = building.input("x", torch.float32, (0, 3))
    (got,) = building.run([building.op.node(op_type, x, [-1], keepdims=0)], [torch.zeros(0, 3)])
    assert got.shape == (0,)


def test_an_axis_that_is_an_attribute() -> None:
    building = Building()
    x = building.input("x", torch.float32, (0, 3))
    best = set_dims(building.op.ArgMax(x, axis=-1, keepdims=0), (0,))
    (got,) = building.run([best], [torch.zeros(0, 3)])
    assert got.shape == (0,)
