"""ONNX's operator schemas."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from coreai_onnx.model.standard.op_schemas import (
    first_version,
    has_schema,
    imported_version,
    schema_fault,
    schema_of,
    types_of,
)


def test_the_version_that_a_graph_imports() -> None:
    assert imported_version("ai.onnx", {"": 21}) == imported_version("", {"ai.onnx": 21}) == 21
    assert imported_version("com.microsoft", {"": 21, "com.microsoft": 1}) == 1
    assert imported_version("ai.onnx.ml", {"": 21}) is None


def test_ops_that_onnx_defines() -> None:
    assert has_schema("", "Clip", {"": 21})
    assert has_schema("ai.onnx", "Clip", {"": 21})
    assert not has_schema("", "RMSNormalization", {"": 22})
    assert not has_schema("com.microsoft", "Gelu", {"com.microsoft": 1})
    schema = schema_of("Clip", 21, "ai.onnx")
    assert schema is not None
    assert schema is schema_of("Clip", 21, "ai.onnx")
    assert schema_of("Nonsense", 21) is None


def test_the_first_version_of_an_op_that_was_revised() -> None:
    assert first_version("Attention") == 23
    assert first_version("Add", "ai.onnx") == 1
    assert first_version("Nonsense") is None


def node(op_type: str, inputs: int, **attributes: object) -> ir.Node:
    return ir.node(op_type, [ir.Value(name=f"x{i}") for i in range(inputs)], attributes)


@pytest.mark.parametrize(
    ("made", "fault"),
    [
        (node("Neg", 1), ""),
        (node("Neg", 1, unknown=1), ""),
        (node("Nonsense", 9), ""),
        (node("Neg", 2), "has 2 inputs, at most 1 are allowed"),
        (node("Where", 2), "has 2 of the 3 inputs that it needs"),
        (node("Cast", 1), "lacks the attribute 'to'"),
        (node("Cast", 1, to="float"), "has the attribute 'to' of the type STRING"),
        (node("Cast", 1, to=99), "has the unknown data type 99"),
        (node("RMSNormalization", 2), "is an operator since opset 23, this one is 21"),
    ],
)
def test_nodes_against_their_schemas(made: ir.Node, fault: str) -> None:
    assert schema_fault(made, 21) == fault


def test_type_variables_and_fixed_types() -> None:
    where = types_of("Where", 23)
    assert [where.input_type(i) for i in range(3)] == ["B", "T", "T"]
    assert where.concrete("B") == ir.DataType.BOOL
    assert where.concrete("T") is None
    assert types_of("TopK", 23).concrete(types_of("TopK", 23).outputs[1]) == ir.DataType.INT64


def test_variadic_inputs_repeat() -> None:
    assert types_of("Concat", 23).input_type(9) == "T"
    assert types_of("Add", 23).input_type(9) is None
