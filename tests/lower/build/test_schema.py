"""What ONNX's operator schemas say about dtypes."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from coreai_onnx.lower.build.schema import op_schema

D = ir.DataType


def test_type_variables_and_fixed_types() -> None:
    where = op_schema("Where", 23)
    assert [where.input_type(i) for i in range(3)] == ["B", "T", "T"]
    assert where.concrete("B") == D.BOOL
    assert where.concrete("T") is None
    assert op_schema("TopK", 23).concrete(op_schema("TopK", 23).outputs[1]) == D.INT64


def test_variadic_inputs_repeat() -> None:
    assert op_schema("Concat", 23).input_type(9) == "T"
    assert op_schema("Add", 23).input_type(9) is None


def test_versions() -> None:
    assert op_schema("Gelu", 20).since_version == 20
    assert op_schema("Add", 18).since_version == 14
    with pytest.raises(KeyError, match="ONNX has Gelu in opset 20, not in opset 19"):
        op_schema("Gelu", 19)
    with pytest.raises(KeyError, match="ONNX has Attention in opset 23, not in opset 22"):
        op_schema("Attention", 22)  # revised in opset 24
