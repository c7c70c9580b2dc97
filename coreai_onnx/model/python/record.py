"""``model.names.json``: what a package knows of nodes beside its Python (see `builder.names`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from coreai_onnx.errors import SaveError
from coreai_onnx.model.inventory import attribute_graphs
from coreai_onnx.model.metadata import ENTRYPOINT, TARGET
from coreai_onnx.model.provenance.source_lines import CODE
from coreai_onnx.model.python.builder.names import encoded_type
from coreai_onnx.model.python.constants import Constants, spelling_of

HIDDEN = (CODE, ENTRYPOINT, TARGET)
"""Metadata that is not part of a model's Python source: notes of the converter."""
Traces = Mapping[str, Any]
"""Key of a graph to the `Trace` that the written package makes of it."""


class Record:
    """Pairs the nodes that a written package makes with those of the model."""

    def __init__(self, model: ir.Model, constants: Constants, traces: Traces) -> None:
        """Pair all graphs.

        Raises:
            SaveError: If the package makes other nodes than the model has.
        """
        self._constants = constants
        self._traces = traces
        self._types: dict[str, int] = {}
        self._metadata: dict[str, int] = {}
        self._graphs: dict[str, Any] = {}
        self._add("", model.graph, [])
        for (domain, name, overload), function in model.functions.items():
            suffix = f":{overload}" if overload else ""
            self._add(f"{domain}::{name}{suffix}", function.graph, [])
        about = {"producer_name": model.producer_name, "producer_version": model.producer_version}
        self._producer = {name: text for name, text in about.items() if text}
        self._hidden = {n: t for n, t in model.metadata_props.items() if n in HIDDEN}
        self._unused = [
            name
            for name, value in model.graph.initializers.items()
            if not value.uses() and not value.is_graph_input() and not value.is_graph_output()
        ]

    def content(self) -> dict[str, Any]:
        """Return the content of the file, without the digest."""
        return {
            "producer": self._producer,
            "model_metadata": self._hidden,
            "graphs": self._graphs,
            "unused": self._unused,
            "types": [json.loads(text) for text in self._types],
            "metadata": [json.loads(text) for text in self._metadata],
        }

    def _add(self, key: str, graph: ir.Graph, around: list[ir.Graph]) -> None:
        trace = self._traces.get(key)
        is_literal = self._constants.is_literal_node
        nodes = [node for node in graph if not is_literal(node)]
        traced: list[tuple[str, ir.Node]] = []
        if trace is not None:
            traced = [(site, n) for site, n in trace.sites.items() if site not in trace.literals]
        # Python evaluates arguments from left to right: not every order of nodes can be written.
        if [node.op_identifier() for node in nodes] != [node.op_identifier() for _, node in traced]:
            raise SaveError(f"graph {key or 'main'}: the nodes cannot be written in their order")
        assert trace is not None
        entries = {
            node: self._entry(node, site, twin)
            for node, (site, twin) in zip(nodes, traced, strict=True)
        }
        entries |= {node: self._literal(node) for node in graph if is_literal(node)}
        graphs = [*around, graph]
        for node, (site, _) in zip(nodes, traced, strict=True):
            for name, attribute in node.attributes.items():
                inner = attribute_graphs(attribute)
                is_list = attribute.type == ir.AttributeType.GRAPHS
                for number, branch in enumerate(inner):
                    place = f"{site}.{name}.{number}" if is_list else f"{site}.{name}"
                    self._add(f"{key}|{place}", branch, graphs)
        is_function = key != "" and not around  # its documentation is in the Python
        record = {
            "name": graph.name,
            "doc": "" if is_function else graph.doc_string,
            "metadata": {} if is_function else dict(graph.metadata_props),
            "inputs": _names(graph.inputs) if key else [],
            "initializers": list(graph.initializers),
            "nodes": [entries[node] for node in graph],
            "constants": self._uses(nodes, graph, graphs, is_function="::" in key),
            "value_types": self._value_types(graph, trace, is_main=not key),
        }
        self._graphs[key] = {name: item for name, item in record.items() if item}

    # ---------------------------------------------------------------- nodes
    def _entry(self, node: ir.Node, site: str, twin: ir.Node) -> list[Any]:
        options = self._about(node)
        if list(node.attributes) != list(twin.attributes):
            options["attributes"] = list(node.attributes)
        return [site, node.name, _names(node.outputs), *([options] if options else [])]

    def _literal(self, node: ir.Node) -> list[Any]:
        constant = self._constants.of(node.outputs[0])
        assert constant is not None
        options = self._about(node)
        if (spelling := spelling_of(node)) != "value":
            options["constant"] = spelling
        name = node.outputs[0].name
        site = f"{constant.key}#{name}"
        return [site, node.name, [name], *([options] if options else [])]

    def _about(self, node: ir.Node) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if node.doc_string:
            options["doc"] = node.doc_string
        if node.metadata_props:
            # In a table, because the nodes of a line have the same module, class and source.
            text = json.dumps(dict(node.metadata_props))
            options["metadata"] = self._metadata.setdefault(text, len(self._metadata))
        tensors = {
            name: attribute.as_tensor().name
            for name, attribute in node.attributes.items()
            if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref()
        }
        named = {name: text for name, text in tensors.items() if text}
        return options | ({"tensors": named} if named else {})

    # ---------------------------------------------------------------- constants and types
    def _uses(
        self,
        nodes: Sequence[ir.Node],
        graph: ir.Graph,
        graphs: Sequence[ir.Graph],
        *,
        is_function: bool,
    ) -> dict[str, list[Any]]:
        """Return which constant each use of a literal means, where it is not the obvious one."""
        used = [value for node in nodes for value in node.inputs]
        by_key: dict[str, list[Any]] = {}
        for value in (*used, *graph.outputs):
            constant = self._constants.of(value)
            if constant is None or value is None or value.is_graph_input():
                continue
            node = value.producer()
            home = value.graph if node is None else node.graph
            levels = next(n for n, g in enumerate(reversed(graphs)) if g is home)
            by_key.setdefault(constant.key, []).append([levels, node is not None, value.name])
        top = len(graphs) - 1
        obvious = {key: [top, is_function, key] for key in by_key}
        return {
            # `GraphNames.constant` takes the last entry for all further uses.
            key: uses if any(use != uses[0] for use in uses) else uses[:1]
            for key, uses in by_key.items()
            if any(use != obvious[key] for use in uses)
        }

    def _value_types(self, graph: ir.Graph, trace: Any, *, is_main: bool) -> dict[str, int]:
        values = [value for node in graph for value in node.outputs]
        values = values if is_main else [*values, *graph.inputs]
        typed = [value for value in values if value.type is not None and value.name]
        for name, value in graph.initializers.items():
            twin = trace.initializers.get(name)
            if twin is not None and (value.type, value.shape) != (twin.type, twin.shape):
                typed.append(value)
        numbers = {}
        for value in typed:
            text = json.dumps(encoded_type(value))
            numbers[value.name or ""] = self._types.setdefault(text, len(self._types))
        return numbers


def _names(values: Sequence[ir.Value]) -> list[str]:
    return [value.name or "" for value in values]


def text_of(record: Mapping[str, Any]) -> str:
    """Return the file as text: a line per node, so that a change of one is a change of one line."""
    return "\n".join(_lines(record, 0)) + "\n"


def _lines(item: Any, depth: int) -> Iterator[str]:
    inner = "  " * (depth + 1)
    if depth < 3 and isinstance(item, dict) and item:
        yield "{"
        yield from _members(((f"{json.dumps(k)}: ", v) for k, v in item.items()), inner, depth)
        yield "  " * depth + "}"
    elif depth in (1, 3) and isinstance(item, list) and item:
        yield "["
        yield from _members((("", v) for v in item), inner, depth + 2)
        yield "  " * depth + "]"
    else:
        yield json.dumps(item)


def _members(items: Iterator[tuple[str, Any]], inner: str, depth: int) -> Iterator[str]:
    members = list(items)
    for number, (prefix, value) in enumerate(members):
        lines = list(_lines(value, depth + 1))
        lines[0] = inner + prefix + lines[0]
        lines[-1] += "," if number < len(members) - 1 else ""
        yield from lines
