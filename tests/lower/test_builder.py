"""The builder: operands, constants, dtypes, dims and opsets."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import sympy
import torch

from coreai_onnx.errors import LoweringError
from coreai_onnx.lower.values import dims_of, dtype_of, set_dims
from tests.lower.building import Building

S = sympy.Symbol("s", integer=True, positive=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int64, torch.uint8])
def test_numbers_take_the_dtype_of_the_other_operand(dtype: torch.dtype) -> None:
    building = Building()
    x = building.input("x", dtype, (2,))
    y = building.op.Add(x, 1)
    assert dtype_of(y) == dtype
    assert dtype_of(building.op.Equal(x, 1)) == torch.bool


def test_the_other_operand_may_come_second() -> None:
    building = Building()
    x = building.input("x", torch.float64, (2,))
    (got,) = building.run([building.op.Sub(1, x)], [torch.tensor([0.25, 2.0]).double()])
    assert got.tolist() == [0.75, -1.0]
    assert got.dtype == np.float64


def test_a_dtype_without_a_kernel_is_computed_in_a_wider_one() -> None:
    building = Building()
    x = building.input("x", torch.bfloat16, (2,))
    y = building.op.Exp(x)
    assert dtype_of(y) == torch.bfloat16
    assert building.op_types == ["Cast", "Exp", "Cast"]


def test_an_absent_optional_input_in_the_middle() -> None:
    building = Building()
    x = building.input("x", torch.float32, (3,))
    (got,) = building.run([building.op.Clip(x, None, 1.0)], [torch.tensor([-5.0, 0.5, 3.0])])
    assert got.tolist() == [-5.0, 0.5, 1.0]
    node = next(n for n in building.graph if n.op_type == "Clip")
    assert node.inputs[1] is None


def test_several_outputs() -> None:
    building = Building()
    x = building.input("x", torch.float32, (4,))
    values, indices = building.op.TopK(x, [2], _outputs=2)
    assert (dtype_of(values), dtype_of(indices)) == (torch.float32, torch.int64)


def test_an_op_the_opset_lacks() -> None:
    building = Building(opset=18)
    x = building.input("x", torch.float32, (2, 2))
    with pytest.raises(LoweringError, match="ONNX has RMSNormalization in opset 23, not in opset"):
        building.op.RMSNormalization(x, x)
    with pytest.raises(LoweringError, match="no opset"):
        building.op.Nonsense(x)


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


def test_small_constants_are_shared_and_keep_their_dtype() -> None:
    building = Building()
    op = building.op
    assert op.const([1, 2]) is op.const([1, 2])
    assert op.const(1.0) is not op.const(1.0, torch.float64)
    assert op.const(True).dtype == ir.DataType.BOOL
    assert op.const([]).dtype == ir.DataType.INT64
    assert op.const(2**40).const_value.numpy() == 2**40
    assert op.const(torch.ones(2, dtype=torch.bfloat16)).dtype == ir.DataType.BFLOAT16


def test_symbolic_operands() -> None:
    building = Building()
    x = building.input("x", torch.float32, (S,))
    scaled = building.op.Div(x, S)
    tiled = building.op.Expand(scaled, [S, S])
    assert dims_of(tiled) == (S, S)
    (got,) = building.run([tiled], [torch.tensor([2.0, 4.0])])
    assert got.tolist() == [[1.0, 2.0]] * 2
