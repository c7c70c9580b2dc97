"""Names, order and defaults of nodes come from the record."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from coreai_onnx.model.python.builder.names import (
    RecordedNames,
    decoded_type,
    encoded_type,
    same_attribute,
)
from tests.model.python.packages import rebuilt
from tests.support.small_models import parse


def test_explicit_defaults_and_their_order_come_back(tmp_path: Path) -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    g (float[n, m] x) => (float[n, m] y)
    { a = Softmax <axis = -1>(x)  b = Softmax(a)
      y = Gemm <transB = 0, alpha = 1.0, beta: float = 1.0>(b, a) }""")
    again = rebuilt(model, tmp_path).model
    found = [list(node.attributes) for node in again.graph]
    assert found == [["axis"], [], ["transB", "alpha", "beta"]]


def test_unused_names() -> None:
    names = RecordedNames({})
    assert [names.unused("a"), names.unused("a"), names.unused("b")] == ["a", "a_1", "b"]


def test_types_come_back() -> None:
    for type_ in (
        ir.TensorType(ir.DataType.FLOAT),
        ir.SequenceType(ir.TensorType(ir.DataType.INT8)),
    ):
        value = ir.Value(name="x", type=type_, shape=ir.Shape(["n", 3, None]))
        assert decoded_type(encoded_type(value)) == (type_, value.shape)
    value = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT))
    assert decoded_type(encoded_type(value)) == (value.type, None)


def test_equal_attributes() -> None:
    assert same_attribute(ir.AttrFloat32("a", 0.5), ir.AttrFloat32("b", 0.5))
    assert not same_attribute(ir.AttrFloat32("a", 1.0), ir.AttrInt64("a", 1))
