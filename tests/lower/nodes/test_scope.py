"""Names, constants and nested scopes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch

from coreai_onnx.errors import Where
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.scope import AttributeRef, Names, Scope, location_metadata


def scope_of(*, constants_as_nodes: bool = False) -> Scope:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 23}, name="main")
    return Scope(graph, Names(), constants_as_nodes=constants_as_nodes)


def test_names_occur_once_and_are_reproducible() -> None:
    made = [[names.unique(n) for n in ("a", "a", "a_1", "a", "b")] for names in (Names(), Names())]
    assert made[0] == made[1]
    assert len(set(made[0])) == 5
    assert made[0][:2] == ["a", "a_1"]


def test_nodes_values_and_sizes_are_named_independently() -> None:
    names = Names()
    assert names.unique("a") == names.nodes.unique("a") == names.dims.unique("a") == "a"


def test_constants_of_nested_scopes_are_the_roots() -> None:
    root = scope_of()
    inner = root.nested(ir.Graph([], [], nodes=[], name="body"))
    value = inner.constant(ir.tensor(np.arange(3)))
    assert value is root.constant(ir.tensor(np.arange(3)))
    assert value.name in root.graph.initializers
    assert not inner.graph.initializers


def test_equal_bytes_of_another_dtype_or_shape_are_other_constants() -> None:
    scope = scope_of()
    zeros = [np.zeros(2, np.int32), np.zeros(2, np.float32), np.zeros((1, 2), np.int32)]
    assert len({id(scope.constant(ir.tensor(z))) for z in zeros}) == 3


def test_a_function_body_has_constants_as_nodes() -> None:
    scope = scope_of(constants_as_nodes=True)
    inner = scope.nested(ir.Graph([], [], nodes=[], name="body"))
    inner.constant(ir.tensor(np.arange(3)))
    assert [n.op_type for n in scope.graph] == ["Constant"]
    assert not scope.graph.initializers


def test_an_attribute_of_the_function_is_read_once() -> None:
    scope = scope_of(constants_as_nodes=True)
    op = OpBuilder(scope, 23)
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    scope.graph.inputs.append(x)
    op.Add(op.Mul(x, AttributeRef("eps", "float")), AttributeRef("eps", "float"))
    assert [n.op_type for n in scope.graph] == ["Constant", "Mul", "Add"]
    assert scope.graph[0].attributes["value_float"].is_ref()


def test_nodes_carry_their_place() -> None:
    scope = scope_of()
    scope.where = Where("layers.0", "Linear", "model.py:3", "return x")
    node = scope.append("Abs", [None], {})
    assert node.name == "layers.0.Abs"
    assert node.metadata_props["coreai.source"] == "model.py:3"
    assert scope.nested(ir.Graph([], [], nodes=[], name="b")).where == scope.where
    assert location_metadata(Where(module="a")) == {"coreai.scope": "a"}


def test_big_constants_are_not_hashed() -> None:
    scope = scope_of()
    big = ir.tensor(torch.zeros(5000).numpy())
    assert scope.constant(big) is not scope.constant(ir.tensor(torch.zeros(5000).numpy()))
