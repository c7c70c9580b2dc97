"""Import of ``onnx_ir`` graphs into graph-surgeon."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from coreai_onnx.errors import PassError
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.constants import constant_from_tensor
from coreai_onnx.passes.engine.surgeon_names import convert_from_onnx_attr_type

CONTAINERS: dict[str, Any] = {
    "tensor_type": ir.TensorType,
    "sparse_tensor_type": ir.SparseTensorType,
    "sequence_type": ir.SequenceType,
    "optional_type": ir.OptionalType,
}
"""The types of ``onnx_ir``, by their names in graph-surgeon."""
LISTS = (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS)
"""Types of attributes whose values are lists in graph-surgeon."""
_PLAIN = (ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING)
_CONSTANT_SCALARS = {
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_float": np.float32,
    "value_floats": np.float32,
}

Values = dict[ir.Value, gs.Tensor]
Type = tuple[np.dtype | None, list[int | str | None] | None, str]
"""Dtype, shape and container of a tensor, as graph-surgeon stores them."""


class Importer:
    """Imports one root graph (the model's, or a function's body) with all its subgraphs."""

    def __init__(self) -> None:
        self.names = gs.UniqueNames()
        self.values: Values = {}

    def graph(self, source: ir.Graph, kind: gs.Kind) -> gs.Graph:
        """Import a graph whose outer values have been imported."""
        constants: list[gs.Constant] = []
        graph = gs.Graph(name=source.name or "", **self._parts(source, constants))
        graph.kind, graph.source = kind, source
        graph.names, graph.constants = self.names, constants
        return graph

    def function(self, source: ir.Function) -> gs.Function:
        """Import a function body."""
        constants: list[gs.Constant] = []
        parts = self._parts(source.graph, constants)
        attrs = {name: self._attribute(attr) for name, attr in source.attributes.items()}
        graph = gs.Function(source.name, domain=source.domain, attrs=attrs, **parts)
        graph.source, graph.names, graph.constants = source, self.names, constants
        return graph

    def _parts(self, source: ir.Graph, constants: list[gs.Constant]) -> dict[str, Any]:
        """Return the parts of a graph; its constants are added to ``constants``."""
        inputs = [self._variable(value) for value in source.inputs]
        self._reserve_outputs(source)
        constants += [  # an input with a default stays an input
            self._initializer(v) for v in source.initializers.values() if v not in self.values
        ]
        kept = [(i, node) for i, node in enumerate(source) if not self._lift(node, i, constants)]
        # All outputs before the first node: a pass over nodes in file order must also import a
        # graph that is not sorted.
        for _, node in kept:
            for value in node.outputs:
                if value.name != "" and value not in self.values:
                    self._variable(value)
        imports = source.opset_imports  # a subgraph has none of its own
        return {
            "inputs": inputs,
            "nodes": [self._node(node, position) for position, node in kept],
            "outputs": [self._known(value, "a graph output") for value in source.outputs],
            "doc_string": source.doc_string or "",
            "opset": imports.get(""),
            "import_domains": [onnx.helper.make_opsetid(*one) for one in imports.items()] or None,
        }

    def _reserve_outputs(self, source: ir.Graph) -> None:
        """Claim the names of outputs first, so that no other value takes them."""
        produced = {value for node in source for value in node.outputs}
        for value in source.outputs:
            if value in produced and value not in self.values:
                self._variable(value)

    def _claim(self, value: ir.Value) -> str:
        return self.names.claim(value.name or "value")

    def _variable(self, value: ir.Value) -> gs.Variable:
        variable = gs.Variable(self._claim(value), *type_of_value(value))
        variable.origin = value
        self.values[value] = variable
        return variable

    def _initializer(self, value: ir.Value) -> gs.Constant:
        if value.const_value is None:
            raise PassError(f"initializer {value.name!r} has no data")
        return self._constant(value, value.const_value)

    def _constant(self, value: ir.Value, tensor: ir.TensorProtocol) -> gs.Constant:
        constant = constant_from_tensor(self._claim(value), tensor)
        constant.origin = value
        self.values[value] = constant
        return constant

    def _lift(self, node: ir.Node, position: int, constants: list[gs.Constant]) -> bool:
        """Import a ``Constant`` node as a constant tensor, if its value is known."""
        if node.op_type != "Constant" or node.domain != "" or len(node.attributes) != 1:
            return False
        (attr,) = node.attributes.values()
        value = node.outputs[0]
        # A reference gets its value from each call of the function.
        if attr.is_ref() or value.is_graph_output():  # an output needs a node that produces it
            return False
        if attr.name == "value":
            tensor: ir.TensorProtocol = attr.as_tensor()
        elif attr.name in _CONSTANT_SCALARS:
            tensor = ir.tensor(np.array(attr.value, dtype=_CONSTANT_SCALARS[attr.name]))
        else:  # strings and sparse tensors remain nodes
            return False
        constant = self._constant(value, tensor)
        constant.node, constant.position = node, position
        constants.append(constant)
        return True

    def _known(self, value: ir.Value, what: str) -> gs.Tensor:
        try:
            return self.values[value]
        except KeyError:
            raise PassError(f"{what} {value.name!r} is produced by nothing") from None

    def _node(self, source: ir.Node, position: int) -> gs.Node:
        inputs = [
            # An object for each absent input: graph-surgeon would list all readers of a shared one.
            gs.Variable.empty()
            if value is None or value.name == ""
            else self._known(value, f"input of {source.op_type} node {source.name!r}:")
            for value in source.inputs
        ]
        outputs: list[Any] = [
            gs.Variable.empty() if value.name == "" else self.values[value]
            for value in source.outputs
        ]
        attrs = {name: self._attribute(attr) for name, attr in source.attributes.items()}
        node = gs.Node(
            source.op_type, source.name or "", attrs, inputs, outputs, source.domain or None
        )
        node.origin, node.position = source, position
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
        if attr.type in LISTS:
            return list(attr.value)
        return attr.value if attr.type in _PLAIN else attr


def type_of_value(value: ir.Value) -> Type:
    """Return dtype, shape (ints, names or None; None if unknown) and graph-surgeon's container."""
    dtype = None if value.dtype in (None, ir.DataType.UNDEFINED) else value.dtype.numpy()
    shape = None
    if value.shape is not None:
        shape = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    kind = type(value.type)
    return dtype, shape, next((n for n, one in CONTAINERS.items() if one is kind), "tensor_type")
