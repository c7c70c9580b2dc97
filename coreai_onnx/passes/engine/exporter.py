"""Export of graph-surgeon graphs to ``onnx_ir``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from coreai_onnx.errors import PassError
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.constants import holds_source, tensor_from_constant
from coreai_onnx.passes.engine.graphs import adopt_objects, reads_of, with_subgraphs
from coreai_onnx.passes.engine.importer import CONTAINERS, LISTS, type_of_value
from coreai_onnx.passes.engine.surgeon_names import convert_to_onnx_attr_type


class Exporter:
    """Exports one root graph (the model's, or a function's body) with all its subgraphs."""

    def __init__(self, root: gs.Graph) -> None:
        """Prepare to export ``root``, which receives the constants that passes created."""
        self.values: dict[gs.Tensor, ir.Value] = {}
        if isinstance(root, gs.Graph):
            adopt_objects(root)

    def graph(self, graph: gs.Graph) -> ir.Graph:
        """Export a graph whose outer values have been exported."""
        return self._graph(graph, graph.name or (graph.source.name if graph.source else None))

    def function(self, graph: gs.Function) -> ir.Function:
        """Export a function body; its constants become ``Constant`` nodes."""
        source = graph.source if isinstance(graph, gs.Function) else None
        if not isinstance(source, ir.Function):
            raise PassError(f"function {graph.name!r} was not read by the engine")
        # A body keeps its attributes: passes do not change the signature of a function.
        attributes = [
            source.attributes.get(name) or _new_attribute(name, value, None)
            for name, value in graph.attrs.items()
        ]
        body = self._graph(graph, source.graph.name)
        return ir.Function(
            graph.domain, graph.name, source.overload, graph=body, attributes=attributes
        )

    def _graph(self, graph: gs.Graph, name: str | None) -> ir.Graph:
        source = graph.source
        inputs = [self._value(tensor) for tensor in graph.inputs]
        as_nodes: list[gs.Constant] = []
        initializers: dict[str, ir.Value] = {}
        for constant in graph.constants:
            if graph.kind == "function" or constant.node is not None:
                as_nodes.append(constant)
            else:
                initializers[constant.name] = self._initializer(constant)
        nodes = self._nodes(graph, as_nodes)
        defaults = {value.name or "": value for value in inputs if value.const_value is not None}
        exported = ir.Graph(
            inputs,
            [self._value(tensor) for tensor in graph.outputs],
            nodes=nodes,
            initializers=_in_source_order(source, defaults, initializers),
            opset_imports=_opset_imports(graph, source),
            name=name,
        )
        _annotate(exported, source)
        exported.doc_string = graph.doc_string or exported.doc_string
        return exported

    def _nodes(self, graph: gs.Graph, constants: Sequence[gs.Constant]) -> list[ir.Node]:
        """Export nodes in order, ``Constant`` nodes at their original positions."""
        # Constants that passes created have no position: first, every node may read them.
        new = [c for c in constants if c.node is None]
        exported = [self._constant_node(constant) for constant in new]
        unplaced = dict.fromkeys(c for c in constants if c.node is not None)
        waiting = list(unplaced)[::-1]
        for node in graph.nodes:
            # Read before their positions come those of a node that a pass moved ahead.
            due = [t for t in reads_of(node) if isinstance(t, gs.Constant) and t in unplaced]
            while waiting and waiting[-1].position < node.position:
                due.append(waiting.pop())
            for constant in due:
                if constant in unplaced:
                    del unplaced[constant]
                    exported.append(self._constant_node(constant))
            exported.append(self._node(node))
        return [*exported, *map(self._constant_node, unplaced)]

    def _value(self, tensor: gs.Tensor) -> ir.Value:
        value = self.values.get(tensor)
        if value is None:
            value = self.values[tensor] = _exported_value(tensor)
        return value

    def _initializer(self, constant: gs.Constant) -> ir.Value:
        value = self._value(constant)
        value.const_value = tensor_from_constant(constant)
        return value

    def _constant_node(self, constant: gs.Constant) -> ir.Node:
        source = constant.node
        # The attribute may be value_float or value_ints, which a round trip must not change.
        if source is not None and holds_source(constant):
            attributes = list(source.attributes.values())
        else:
            attributes = [ir.AttrTensor("value", tensor_from_constant(constant))]
        name = constant.name if source is None else source.name
        outputs = [self._value(constant)]
        node = ir.Node("", "Constant", [], attributes, outputs=outputs, name=name)
        _annotate(node, source or constant.maker)
        return node

    def _node(self, node: gs.Node) -> ir.Node:
        source = node.origin
        old = {} if source is None else source.attributes
        exported = ir.Node(
            node.domain or "",
            node.op,
            [None if tensor.is_empty() else self._value(tensor) for tensor in node.inputs],
            [self._attribute(name, value, old.get(name)) for name, value in node.attrs.items()],
            outputs=[self._value(tensor) for tensor in node.outputs],
            name=node.name,
        )
        _annotate(exported, source)
        if source is not None and source.op_type == node.op:
            # A node that a pass turned into another op must not call an overload of the former one.
            exported.overload, exported.version = source.overload, source.version
            if source.device_configurations:
                exported.device_configurations = self._devices(source)
        return exported

    def _devices(self, source: ir.Node) -> tuple[Any, ...]:
        """Point sharding specs at the exported values of the same names."""
        by_name = {value.name: value for value in self.values.values()}
        return tuple(
            dataclasses.replace(
                configuration,
                sharding_specs=tuple(
                    dataclasses.replace(spec, value=by_name.get(spec.value.name))
                    for spec in configuration.sharding_specs
                    if spec.value is not None and spec.value.name in by_name
                ),
            )
            for configuration in source.device_configurations
        )

    def _attribute(self, name: str, value: Any, old: ir.Attr | None) -> ir.Attr:
        if isinstance(value, gs.Graph):
            return ir.AttrGraph(name, self.graph(value), doc_string=old.doc_string if old else None)
        if isinstance(value, list) and value and isinstance(value[0], gs.Graph):
            return ir.AttrGraphs(name, [self.graph(graph) for graph in value])
        return (
            old
            if old is not None and _is_value_of(old, value)
            else _new_attribute(name, value, old)
        )


def _is_value_of(old: ir.Attr, value: Any) -> bool:
    """Whether no pass changed an attribute: its value is the imported one."""
    if old.is_ref():
        return isinstance(value, gs.Node.AttributeRef) and value.name == old.ref_attr_name
    if isinstance(value, gs.AnyConstant):
        return tensor_from_constant(value) is old.value
    if isinstance(value, list):
        return old.type in LISTS and value == list(old.value)
    return value is old.value or (type(value) is type(old.value) and value == old.value)


def _new_attribute(name: str, value: Any, old: ir.Attr | None) -> ir.Attr:
    """Create an attribute from a Python value that a pass wrote."""
    if isinstance(value, gs.Node.AttributeRef):
        return ir.RefAttr(name, value.name, ir.AttributeType(convert_to_onnx_attr_type(value.type)))
    if value is None:
        return ir.Attr(name, old.type if old else ir.AttributeType.UNDEFINED, None)
    if isinstance(value, list | tuple) and not value:
        # An empty list has no element that tells its type.
        return ir.Attr(name, old.type if old else ir.AttributeType.INTS, ())
    if isinstance(value, gs.AnyConstant):
        value = tensor_from_constant(value)
    elif isinstance(value, np.ndarray):
        value = ir.tensor(value)
    elif isinstance(value, list | tuple):
        value = [item.item() if isinstance(item, np.generic) else item for item in value]
    elif isinstance(value, np.generic):
        value = value.item()
    try:
        return ir.convenience.convert_attribute(name, value)
    except TypeError:
        kind = type(value).__name__
        raise PassError(f"attribute {name!r}: a {kind} cannot be written to ONNX") from None


def _exported_value(tensor: gs.Tensor) -> ir.Value:
    origin = tensor.origin
    value = ir.Value(name=tensor.name)
    _annotate(value, origin)
    if origin is not None and _keeps_type(tensor, origin):
        value.type = origin.type
        value.shape = origin.shape.copy() if origin.shape is not None else None
        # The default of an input; constants get their values where they are exported.
        value.const_value = origin.const_value
    elif isinstance(tensor, gs.Constant) or tensor.dtype is not None:
        element = ir.DataType.from_numpy(np.dtype(tensor.dtype))
        container = CONTAINERS[getattr(tensor, "type", "tensor_type")]
        # graph-surgeon stores the element type alone; a sequence or an optional holds tensors of
        # it.
        is_nested = container in (ir.SequenceType, ir.OptionalType)
        value.type = container(ir.TensorType(element) if is_nested else element)
        value.shape = None if tensor.shape is None else ir.Shape(tensor.shape)
    return value


def _keeps_type(tensor: gs.Tensor, origin: ir.Value) -> bool:
    if isinstance(tensor, gs.Constant):
        return holds_source(tensor)
    shape = None if tensor.shape is None else list(tensor.shape)
    return (tensor.dtype, shape, tensor.type) == type_of_value(origin)


def _annotate(target: Any, source: Any) -> None:
    """Copy the doc string and the metadata of a graph, a node or a value, if there is a source."""
    if source is None:
        return
    target.doc_string = source.doc_string
    target.metadata_props.update(source.metadata_props)
    if source.meta:
        target.meta.update(source.meta)


def _in_source_order(
    source: ir.Graph | ir.Function | None,
    defaults: dict[str, ir.Value],
    constants: dict[str, ir.Value],
) -> list[ir.Value]:
    """Return initializers in source order: defaults of inputs and constants may alternate."""
    in_source = source.initializers if isinstance(source, ir.Graph) else {}
    both = defaults | constants
    ordered = [both.pop(name) for name in in_source if name in both]
    return ordered + [value for name, value in both.items() if name in constants]


def _opset_imports(graph: gs.Graph, source: ir.Graph | ir.Function | None) -> dict[str, int]:
    """Return the source's opset imports and those of added nodes, new domains at version 1."""
    imports = dict(source.opset_imports) if source is not None else {}
    if source is not None and not imports:
        return imports  # a subgraph has no imports of its own
    for entry in graph.import_domains or ():
        imports.setdefault("" if entry.domain == "ai.onnx" else entry.domain, entry.version)
    # Runtimes inline functions into their callers, so the model imports what its functions import.
    functions = graph.functions if graph.kind == "main" else []
    for root in (graph, *functions):
        for inner in with_subgraphs(root):
            for node in inner.nodes:
                if node.domain:
                    imports.setdefault(node.domain, 1)
    return imports
