"""Nodes as protos for ONNX's checks."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from coreai_onnx.model.standard.model_protos import (
    constant_tensor,
    declared_type,
    frozen,
    is_large_constant,
    is_small,
    node_proto,
    subgraphs,
    type_of_tensor,
    values_read,
    without_shape,
)
from tests.support.small_models import parse

HEAD = '<ir_version: 10, opset_import: ["": 23]>\n'


def test_a_proto_has_no_metadata_and_empty_graphs() -> None:
    model = parse(
        HEAD
        + """g (bool c, float[n] x) => (float[n] y) {
      y = If (c) <then_branch = t () => (float[n] u) { u = Neg (x) },
                  else_branch = e () => (float[n] v) { v = Abs (x) }> }"""
    )
    node = model.graph[0]
    node.metadata_props["coreai.scope"] = "mlp"
    proto = node_proto(node, "7")
    assert (proto.name, proto.op_type, list(proto.input), list(proto.output)) == (
        "7", "If", ["c"], ["y"],
    )  # fmt: skip
    assert not proto.metadata_props
    assert [(a.name, a.g.name, len(a.g.node)) for a in proto.attribute] == [
        ("then_branch", "graph", 0),
        ("else_branch", "graph", 0),
    ]
    assert [graph.name for graph in subgraphs(node)] == ["t", "e"]
    inner = [one for graph in subgraphs(node) for one in graph]
    assert {value.name for value in values_read([node, *inner])} == {"c", "x", "u", "v"}


def test_references_are_replaced_by_what_a_call_gives() -> None:
    reference = ir.RefAttr("to", "dtype", ir.AttributeType.INT)
    node = ir.node("Cast", [ir.val("x")], {"to": reference})
    assert node_proto(node, "0").attribute[0].ref_attr_name == "dtype"
    (bound,) = node_proto(node, "0", {"dtype": ir.AttrInt64("dtype", 7)}).attribute
    assert (bound.name, bound.i, bound.ref_attr_name) == ("to", 7, "")
    assert not node_proto(node, "0", {}).attribute


def test_constants_and_weights() -> None:
    small, large = (ir.tensor(np.zeros(n, np.float32), name="t") for n in (4, 4000))
    nodes = [ir.node("Constant", [], {"value": tensor}) for tensor in (small, large)]
    assert [is_small(tensor) for tensor in (small, large)] == [True, False]
    assert [is_large_constant(node) for node in nodes] == [False, True]
    assert constant_tensor(nodes[0]) is small
    assert constant_tensor(ir.node("Constant", [], {"value_int": 1})) is None
    kind = type_of_tensor(large)
    assert kind == onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [4000])
    assert not without_shape(kind).tensor_type.HasField("shape")


def test_declared_types() -> None:
    model = parse(HEAD + "g (float[n, 2] x) => (y) { y = Neg (x) }")
    kind = declared_type(model.graph.inputs[0])
    assert kind == onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ["n", 2])
    assert declared_type(model.graph.outputs[0]) is None
    assert declared_type(ir.Value(name="z", type=ir.TensorType(ir.DataType.UNDEFINED))) is None


def test_equal_attributes_are_equal_bytes() -> None:
    assert frozen(ir.AttrInt64("a", 1)) == frozen(ir.AttrInt64("a", 1))
    assert frozen(ir.AttrInt64("a", 1)) != frozen(ir.AttrFloat32("a", 1.0))
