"""Import of ``onnx_ir`` graphs into graph-surgeon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
from onnx_graphsurgeon.util.misc import convert_from_onnx_attr_type

from coreai_onnx.errors import PassError
from coreai_onnx.passes.engine.scope import Kind, Names, Scope
from coreai_onnx.passes.engine.weight import constant_from_tensor

_CONTAINER: dict[object, str] = {
    ir.TensorType: "tensor_type",
    ir.SparseTensorType: "sparse_tensor_type",
    ir.SequenceType: "sequence_type",
    ir.OptionalType: "optional_type",
}
_CONSTANT_SCALARS = {
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_float": np.float32,
    "value_floats": np.float32,
}

Values = dict[ir.Value, gs.Tensor]


class Importer:
    """Imports one root graph (the model's, or a function's body) with all its subgraphs."""

    def __init__(self) -> None:
        """Start with no values and no names."""
        self.names = Names()
        self.values: Values = {}

    def graph(self, source: ir.Graph, kind: Kind) -> gs.Graph:
        """Import a graph whose outer values have been imported."""
        scope = Scope(kind, source, self.names)
        inputs, outputs, nodes = self._body(source, scope)
        graph = gs.Graph(
            nodes=nodes,
            inputs=inputs,
            outputs=outputs,
            name=source.name or "",
            doc_string=source.doc_string or "",
            opset=source.opset_imports.get("", None),
            import_domains=opset_ids(source.opset_imports) if source.opset_imports else None,
        )
        graph.scope = scope
        return graph

    def function(self, source: ir.Function) -> gs.Function:
        """Import a function body."""
        scope = Scope("function", source, self.names)
        inputs, outputs, nodes = self._body(source.graph, scope)
        graph = gs.Function(
            source.name,
            domain=source.domain,
            nodes=nodes,
            inputs=inputs,
            outputs=outputs,
            doc_string=source.doc_string or "",
            opset=source.opset_imports.get("", None),
            import_domains=opset_ids(source.opset_imports),
            attrs={name: self._attribute(attr) for name, attr in source.attributes.items()},
        )
        graph.scope = scope
        return graph

    def _body(
        self, source: ir.Graph, scope: Scope
    ) -> tuple[list[gs.Tensor], list[gs.Tensor], list[gs.Node]]:
        inputs = [self._variable(value) for value in source.inputs]
        self._reserve_outputs(source)
        for value in source.initializers.values():
            if value not in self.values:  # an input with a default stays an input
                scope.constants.append(self._initializer(value))
        kept = [(i, node) for i, node in enumerate(source) if not self._lift(node, i, scope)]
        for _, node in kept:
            for value in node.outputs:
                if value.name != "" and value not in self.values:
                    self._variable(value)
        nodes = [self._node(node, position) for position, node in kept]
        return inputs, [self._known(value, "a graph output") for value in source.outputs], nodes

    def _reserve_outputs(self, source: ir.Graph) -> None:
        """Claim the names of outputs first, so that no other value takes them."""
        produced = {value for node in source for value in node.outputs}
        for value in source.outputs:
            if value in produced and value not in self.values:
                self._variable(value)

    def _claim(self, value: ir.Value) -> str:
        return self.names.claim(value.name or "value")

    def _variable(self, value: ir.Value) -> gs.Variable:
        variable = gs.Variable(
            self._claim(value), dtype_of_value(value), shape_of_value(value), container_of(value)
        )
        variable.origin = value
        variable.imported_type = type_key(variable)
        self.values[value] = variable
        return variable

    def _initializer(self, value: ir.Value) -> gs.Constant:
        if value.const_value is None:
            raise PassError(f"initializer {value.name!r} has no data")
        constant = constant_from_tensor(self._claim(value), value.const_value)
        constant.origin, constant.imported_type = value, None
        self.values[value] = constant
        return constant

    def _lift(self, node: ir.Node, position: int, scope: Scope) -> bool:
        """Import a ``Constant`` node as a constant tensor, if its value is known."""
        if node.op_type != "Constant" or node.domain != "" or len(node.attributes) != 1:
            return False
        (attr,) = node.attributes.values()
        value = node.outputs[0]
        if attr.is_ref() or value.is_graph_output():
            return False
        if attr.name == "value":
            tensor: ir.TensorProtocol = attr.as_tensor()
        elif attr.name in _CONSTANT_SCALARS:
            tensor = ir.tensor(np.array(attr.value, dtype=_CONSTANT_SCALARS[attr.name]))
        else:  # strings and sparse tensors remain nodes
            return False
        constant = constant_from_tensor(self._claim(value), tensor)
        constant.origin, constant.imported_type = value, None
        constant.node, constant.position = node, position
        scope.constants.append(constant)
        self.values[value] = constant
        return True

    def _known(self, value: ir.Value, what: str) -> gs.Tensor:
        try:
            return self.values[value]
        except KeyError:
            raise PassError(f"{what} {value.name!r} is produced by nothing") from None

    def _node(self, source: ir.Node, position: int) -> gs.Node:
        inputs = [
            gs.Variable.empty()
            if value is None or value.name == ""
            else self._known(value, f"input of {source.op_type} node {source.name!r}:")
            for value in source.inputs
        ]
        outputs = [
            gs.Variable.empty() if value.name == "" else self.values[value]
            for value in source.outputs
        ]
        attrs = {name: self._attribute(attr) for name, attr in source.attributes.items()}
        node = gs.Node(
            source.op_type, source.name or "", attrs, inputs, outputs, source.domain or None
        )
        node.origin, node.position = source, position
        node.imported_attrs = {name: snapshot(value) for name, value in attrs.items()}
        return node

    def _attribute(self, attr: ir.Attr) -> Any:
        if attr.is_ref():
            return gs.Node.AttributeRef(attr.ref_attr_name, convert_from_onnx_attr_type(attr.type))
        if attr.value is None:  # a function's attribute without default
            return None
        if attr.type == ir.AttributeType.TENSOR:
            return constant_from_tensor(attr.as_tensor().name or "", attr.as_tensor())
        if attr.type == ir.AttributeType.GRAPH:
            return self.graph(attr.as_graph(), "subgraph")
        if attr.type == ir.AttributeType.GRAPHS:
            return [self.graph(graph, "subgraph") for graph in attr.as_graphs()]
        if attr.type in _PLAIN_LISTS:
            return list(attr.value)
        return attr.value if attr.type in _PLAIN else attr


_PLAIN = {ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING}
_PLAIN_LISTS = {ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS}


def snapshot(value: Any) -> Any:
    """Copy an attribute value deeply enough to detect later whether a pass changed it."""
    return tuple(value) if isinstance(value, list) else value


def type_key(variable: gs.Variable) -> tuple[Any, ...]:
    """Return a variable's type in graph-surgeon, to detect later whether a pass changed it."""
    shape = None if variable.shape is None else tuple(variable.shape)
    return variable.dtype, shape, variable.type


def opset_ids(imports: Mapping[str, int]) -> list[onnx.OperatorSetIdProto]:
    """Return opset imports in the form in which graph-surgeon stores them."""
    return [onnx.helper.make_opsetid(domain, version) for domain, version in imports.items()]


def dtype_of_value(value: ir.Value) -> np.dtype | None:
    """Return the element dtype of a value, if known."""
    if value.dtype is None or value.dtype == ir.DataType.UNDEFINED:
        return None
    return value.dtype.numpy()


def shape_of_value(value: ir.Value) -> list[int | str | None] | None:
    """Return a value's shape; a dim is an int, a name, or None."""
    if value.shape is None:
        return None
    return [dim if isinstance(dim, int) else dim.value for dim in value.shape]


def container_of(value: ir.Value) -> str:
    """Return graph-surgeon's name for the value's type (tensor, sequence, …)."""
    return _CONTAINER.get(type(value.type), "tensor_type")
