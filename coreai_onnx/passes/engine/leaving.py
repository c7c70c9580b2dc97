"""Export of graph-surgeon graphs to ``onnx_ir``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import onnx_ir as ir
from onnx_graphsurgeon.util.misc import convert_to_onnx_attr_type

from coreai_onnx.errors import PassError
from coreai_onnx.passes.engine.entering import snapshot, type_key
from coreai_onnx.passes.engine.scope import (
    Scope,
    adopt_constants,
    attribute_graphs,
    scope_of,
    with_subgraphs,
)
from coreai_onnx.passes.engine.weight import holds_source, tensor_from_constant

_TYPES: dict[str, Callable[[ir.DataType], ir.TypeProtocol]] = {
    "tensor_type": ir.TensorType,
    "sparse_tensor_type": ir.SparseTensorType,
    "sequence_type": lambda dtype: ir.SequenceType(ir.TensorType(dtype)),
    "optional_type": lambda dtype: ir.OptionalType(ir.TensorType(dtype)),
}
_ATTRIBUTE_TYPES: tuple[tuple[type | tuple[type, ...], ir.AttributeType], ...] = (
    ((bool, int, np.integer), ir.AttributeType.INT),
    ((float, np.floating), ir.AttributeType.FLOAT),
    ((str, bytes), ir.AttributeType.STRING),
)


class Exporter:
    """Exports one root graph (the model's, or a function's body) with all its subgraphs."""

    def __init__(self, root: gs.Graph) -> None:
        """Prepare to export ``root``, which receives the constants that passes created."""
        self.root = root
        self.values: dict[int, ir.Value] = {}
        adopt_constants(root)

    def graph(self, graph: gs.Graph) -> ir.Graph:
        """Export a graph whose outer values have been exported."""
        scope = graph.__dict__.get("scope") or Scope("subgraph", None, scope_of(self.root).names)
        source = scope.source if isinstance(scope.source, ir.Graph) else None
        inputs, outputs, nodes, initializers = self._body(graph, scope)
        exported = ir.Graph(
            inputs,
            outputs,
            nodes=nodes,
            initializers=initializers,
            doc_string=graph.doc_string or (source.doc_string if source is not None else None),
            opset_imports=_opset_imports(graph, source),
            name=graph.name or (source.name if source is not None else None),
            metadata_props=dict(source.metadata_props) if source is not None else None,
        )
        if source is not None:
            _copy_meta(source, exported)
        return exported

    def function(self, graph: gs.Function) -> ir.Function:
        """Export a function body; its constants become ``Constant`` nodes."""
        source = scope_of(graph).source
        if not isinstance(source, ir.Function):
            raise PassError(f"function {graph.name!r} was not read by the engine")
        inputs, outputs, nodes, _ = self._body(graph, scope_of(graph))
        body = ir.Graph(
            inputs,
            outputs,
            nodes=nodes,
            doc_string=graph.doc_string or source.doc_string,
            opset_imports=_opset_imports(graph, source.graph),
            name=source.graph.name,
            metadata_props=dict(source.metadata_props),
        )
        _copy_meta(source.graph, body)
        function = ir.Function(
            graph.domain,
            graph.name,
            source.overload,
            graph=body,
            attributes=[self._attribute(k, v, source, {}) for k, v in graph.attrs.items()],
        )
        _copy_meta(source, function)
        return function

    def _body(
        self, graph: gs.Graph, scope: Scope
    ) -> tuple[list[ir.Value], list[ir.Value], list[ir.Node], list[ir.Value]]:
        inputs = [self._value(tensor) for tensor in graph.inputs]
        as_nodes = []
        initializers = {}
        for constant in scope.constants:
            if scope.kind == "function" or "node" in constant.__dict__:
                as_nodes.append(constant)
            else:
                initializers[constant.name] = self._initializer(constant)
        nodes = self._nodes(graph, as_nodes)
        outputs = [self._value(tensor) for tensor in graph.outputs]
        defaults = {value.name or "": value for value in inputs if value.const_value is not None}
        return inputs, outputs, nodes, _in_source_order(scope, defaults, initializers)

    def _nodes(self, graph: gs.Graph, constants: Sequence[gs.Constant]) -> list[ir.Node]:
        """Export nodes in order, ``Constant`` nodes at their original positions."""
        new = [c for c in constants if "node" not in c.__dict__]
        exported = [self._constant_node(constant) for constant in new]
        waiting = [c for c in constants if "node" in c.__dict__][::-1]
        unplaced = {id(c): c for c in waiting}
        for node in graph.nodes:
            due = [t for t in _reads(node) if id(t) in unplaced]
            position = node.__dict__.get("position", -1)
            while waiting and waiting[-1].position < position:
                due.append(waiting.pop())
            for constant in due:
                if unplaced.pop(id(constant), None) is None:
                    continue
                exported.append(self._constant_node(constant))
            exported.append(self._node(node))
        rest = [c for c in reversed(waiting) if id(c) in unplaced]
        return [*exported, *(self._constant_node(constant) for constant in rest)]

    def _value(self, tensor: gs.Tensor) -> ir.Value:
        value = self.values.get(id(tensor))
        if value is None:
            value = self.values[id(tensor)] = _exported_value(tensor)
        return value

    def _initializer(self, constant: gs.Constant) -> ir.Value:
        value = self._value(constant)
        value.const_value = tensor_from_constant(constant)
        return value

    def _constant_node(self, constant: gs.Constant) -> ir.Node:
        source: ir.Node | None = constant.__dict__.get("node")
        tensor = tensor_from_constant(constant)
        if source is None:
            attributes = [ir.AttrTensor("value", tensor)]
        else:
            attributes = list(source.attributes.values())
            if not holds_source(constant):
                attributes = [ir.AttrTensor("value", tensor)]
        value = self._value(constant)
        name = constant.name if source is None else source.name
        node = ir.Node("", "Constant", [], attributes, outputs=[value], name=name)
        _copy_node_extras(source or constant.__dict__.get("maker"), node)
        return node

    def _node(self, node: gs.Node) -> ir.Node:
        source: ir.Node | None = node.__dict__.get("origin")
        imported = node.__dict__.get("imported_attrs", {})
        attributes = [
            self._attribute(name, value, source, imported) for name, value in node.attrs.items()
        ]
        same_op = source is not None and source.op_type == node.op
        exported = ir.Node(
            node.domain or "",
            node.op,
            [None if tensor.is_empty() else self._value(tensor) for tensor in node.inputs],
            attributes,
            overload=source.overload if source is not None and same_op else "",
            outputs=[self._value(tensor) for tensor in node.outputs],
            version=source.version if source is not None and same_op else None,
            name=node.name,
        )
        _copy_node_extras(source, exported)
        if source is not None and same_op and source.device_configurations:
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

    def _attribute(
        self,
        name: str,
        value: Any,
        source: ir.Node | ir.Function | None,
        imported: dict[str, Any],
    ) -> ir.Attr:
        old = source.attributes.get(name) if source is not None else None
        if isinstance(value, ir.Attr):
            return value
        if isinstance(value, gs.Graph):
            return ir.AttrGraph(name, self.graph(value), doc_string=old.doc_string if old else None)
        if isinstance(value, list) and value and isinstance(value[0], gs.Graph):
            return ir.AttrGraphs(name, [self.graph(graph) for graph in value])
        if old is not None and (
            isinstance(source, ir.Function) or _unchanged(name, value, imported)
        ):
            return old
        return _new_attribute(name, value, old)


def _unchanged(name: str, value: Any, imported: dict[str, Any]) -> bool:
    if name not in imported:
        return False
    if isinstance(value, gs.Constant):
        return imported[name] is value and holds_source(value)
    return imported[name] is value or (
        type(imported[name]) is type(snapshot(value)) and imported[name] == snapshot(value)
    )


def _new_attribute(name: str, value: Any, old: ir.Attr | None) -> ir.Attr:
    """Create an attribute from a Python value that a pass wrote."""
    if isinstance(value, gs.Node.AttributeRef):
        return ir.RefAttr(name, value.name, ir.AttributeType(convert_to_onnx_attr_type(value.type)))
    if value is None:
        return ir.Attr(name, old.type if old else ir.AttributeType.UNDEFINED, None)
    if isinstance(value, gs.Constant):
        return ir.AttrTensor(name, tensor_from_constant(value))
    if isinstance(value, np.ndarray):
        return ir.AttrTensor(name, ir.tensor(value))
    if isinstance(value, list | tuple):
        if not value:
            return ir.Attr(name, old.type if old else ir.AttributeType.INTS, ())
        single = _new_attribute(name, value[0], None).type
        return ir.Attr(name, ir.AttributeType[f"{single.name}S"], value)
    for types, kind in _ATTRIBUTE_TYPES:
        if isinstance(value, types):
            return ir.Attr(name, kind, value)
    raise PassError(f"attribute {name!r}: a {type(value).__name__} cannot be written to ONNX")


def _exported_value(tensor: gs.Tensor) -> ir.Value:
    origin: ir.Value | None = tensor.__dict__.get("origin")
    value = ir.Value(name=tensor.name)
    if origin is not None:
        value.doc_string = origin.doc_string
        value.metadata_props.update(origin.metadata_props)
        _copy_meta(origin, value)
    if origin is not None and tensor.__dict__.get("imported_type", ()) == _type_of(tensor):
        value.type = origin.type
        value.shape = origin.shape.copy() if origin.shape is not None else None
        value.const_value = origin.const_value
    elif isinstance(tensor, gs.Constant) or tensor.dtype is not None:
        kind = "tensor_type" if isinstance(tensor, gs.Constant) else tensor.type
        value.type = _TYPES[kind](ir.DataType.from_numpy(np.dtype(tensor.dtype)))
        value.shape = None if tensor.shape is None else ir.Shape(tensor.shape)
    return value


def _type_of(tensor: gs.Tensor) -> tuple[Any, ...] | None:
    """Return the type key that equals ``imported_type`` if unchanged; None for a constant."""
    if isinstance(tensor, gs.Constant):
        return None if holds_source(tensor) else ("changed",)
    return type_key(tensor)


def _copy_node_extras(source: ir.Node | None, target: ir.Node) -> None:
    if source is None:
        return
    target.doc_string = source.doc_string
    target.metadata_props.update(source.metadata_props)
    _copy_meta(source, target)


def _copy_meta(source: Any, target: Any) -> None:
    if source.meta:
        target.meta.update(source.meta)


def _reads(node: gs.Node) -> Iterable[gs.Tensor]:
    """Yield the tensors that a node reads, also inside its subgraphs."""
    yield from node.inputs
    for inner in attribute_graphs(node):
        for graph in with_subgraphs(inner):
            yield from _uses(graph)


def _uses(graph: gs.Graph) -> Iterable[gs.Tensor]:
    for node in graph.nodes:
        yield from node.inputs
    yield from graph.outputs


def _in_source_order(
    scope: Scope, defaults: dict[str, ir.Value], constants: dict[str, ir.Value]
) -> list[ir.Value]:
    """Return initializers in source order: defaults of inputs and constants may alternate."""
    source = scope.source if isinstance(scope.source, ir.Graph) else None
    both = defaults | constants
    known = source.initializers if source is not None else {}
    ordered = [both.pop(name) for name in known if name in both]
    listed = [value for name, value in both.items() if name in constants]
    return ordered + listed


def _opset_imports(graph: gs.Graph, source: ir.Graph | None) -> dict[str, int]:
    """Return the source's opset imports and those of added nodes, new domains at version 1."""
    imports = dict(source.opset_imports) if source is not None else {}
    if source is not None and not imports:
        return imports  # a subgraph has no imports of its own
    for entry in graph.import_domains or ():
        imports.setdefault("" if entry.domain == "ai.onnx" else entry.domain, entry.version)
    # Runtimes inline functions into their callers, so the model imports what its functions import.
    functions = graph.functions if scope_of(graph).kind == "main" else []
    for root in (graph, *functions):
        for inner in with_subgraphs(root):
            for node in inner.nodes:
                if node.domain:
                    imports.setdefault(node.domain, 1)
    return imports
