"""The builder of nodes: operands, constants, dtypes and opsets."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import sympy
import torch

from coreai_onnx.errors import LoweringError
from coreai_onnx.lower.nodes.node_builder import NodeBuilder
from coreai_onnx.lower.nodes.values import dtype_of
from tests.lower.building import Building


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
    (only,) = building.op.Split(x, num_outputs=1, axis=0, _outputs=1)
    assert dtype_of(only) == torch.float32


@pytest.mark.parametrize(
    ("op_type", "first"),
    [("Gelu", 20), ("Attention", 23)],  # Attention was revised in opset 24
)
def test_the_schema_of_an_op_the_opset_lacks(op_type: str, first: int) -> None:
    assert Building(opset=first).op.schema(op_type).since_version == first
    text = f"ONNX has {op_type} in opset {first}, not in opset {first - 1}"
    with pytest.raises(LoweringError, match=text):
        Building(opset=first - 1).op.schema(op_type)


def test_an_op_the_opset_lacks() -> None:
    building = Building(opset=18)
    x = building.input("x", torch.float32, (2, 2))
    with pytest.raises(LoweringError, match="ONNX has RMSNormalization in opset 23, not in opset"):
        building.op.RMSNormalization(x, x)
    with pytest.raises(LoweringError, match="ONNX has no operator Nonsense"):
        building.op.Nonsense(x)


def test_small_constants_are_shared_and_keep_their_dtype() -> None:
    building = Building()
    op = building.op
    assert op.const([1, 2]) is op.const([1, 2])
    assert op.const(1.0) is not op.const(1.0, torch.float64)
    assert op.const(True).dtype == ir.DataType.BOOL
    assert op.const([]).dtype == ir.DataType.INT64
    assert op.const(2**40).const_value.numpy() == 2**40
    assert op.const(torch.ones(2, dtype=torch.bfloat16)).dtype == ir.DataType.BFLOAT16


def test_a_builder_without_sizes_takes_values_and_numbers_only() -> None:
    building = Building()
    x = building.input("x", torch.float32, (3,))
    plain = NodeBuilder(building.op.scope, 23)
    (got,) = building.run([plain.unsqueeze(plain.Add(x, 1), [0])], [torch.zeros(3)])
    assert got.tolist() == [[1.0, 1.0, 1.0]]
    assert plain.symbolic(sympy.Symbol("s")) is None
    with pytest.raises(TypeError):
        plain.Add(x, sympy.Symbol("s"))


def test_nodes_by_op_type() -> None:
    building = Building()
    x = building.input("x", torch.float32, (2, 3))
    assert dtype_of(building.op.node("ArgMax", x, axis=1)) == torch.int64
    values, _ = building.op.node("TopK", x, [2], outputs=2)
    assert dtype_of(values) == torch.float32


def test_an_opaque_node_takes_constants_sizes_and_absent_inputs() -> None:
    building, n = Building(), sympy.Symbol("n", positive=True, integer=True)
    x = building.input("x", torch.float16, (n, 3))
    y = building.op.node("F", x, None, n, 2.5, domain="my.ops", dtypes=[torch.int8], mode="a")
    node = y.producer()
    assert node is not None
    assert (node.domain, node.op_type, node.attributes["mode"].as_string()) == ("my.ops", "F", "a")
    assert dtype_of(y) == torch.int8
    types = [None if v is None else dtype_of(v) for v in node.inputs]
    assert types == [torch.float16, None, torch.int64, torch.float32]
    assert building.graph.opset_imports["my.ops"] == 1


def test_an_opaque_node_needs_dtypes_and_one_version() -> None:
    building = Building()
    x = building.input("x", torch.float32, (2,))
    with pytest.raises(LoweringError, match=r"my\.ops::F has 1 output\(s\), but the dtypes of 0"):
        building.op.node("F", x, domain="my.ops")
    building.op.node("F", x, domain="my.ops", dtypes=[torch.float32], opset_version=2)
    with pytest.raises(LoweringError, match=r"my\.ops::G is of version 1, another node"):
        building.op.node("G", x, domain="my.ops", dtypes=[torch.float32])
