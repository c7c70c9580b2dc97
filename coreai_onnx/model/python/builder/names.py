"""Names, order, types and origins of nodes that the model file does not show.

They are in ``model.names.json``, keyed by the place where a node is made: the functions that are
being called, and the operator. Where an edited model makes other nodes, these get names of their
own, and ONNX infers the types anew. Without the file, a model of the same meaning is built.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from onnxscript import ir

from .attributes import default_of
from .schemas import schema_of

if TYPE_CHECKING:
    from .tracing import Trace

Defaults = dict[tuple[str, str, str], dict[str, ir.Attr]]
"""Functions, and the default values of their attributes."""


class RecordedNames:
    """What is recorded of a model."""

    def __init__(self, record: dict[str, Any]) -> None:
        """Take the content of ``model.names.json``; an empty one names nothing."""
        self.record = record
        self.traces: list[Trace] = []
        self._counts: Counter[str] = Counter()
        # From the start, so that no new node gets the name of a recorded one that
        # follows.
        self._taken = {name for graph in self._graphs() for name in _names_in(graph)}

    @classmethod
    def read(cls, path: Path) -> RecordedNames:
        """Read a file; a missing one names nothing."""
        return cls(json.loads(path.read_text("utf-8")) if path.is_file() else {})

    def _graphs(self) -> Iterable[dict[str, Any]]:
        graphs: dict[str, dict[str, Any]] = self.record.get("graphs", {})
        return graphs.values()

    def graph(self, key: str) -> GraphNames:
        """Return what is recorded of a graph."""
        return GraphNames(self, key, self.record.get("graphs", {}).get(key, {}))

    def unused(self, base: str) -> str:
        """Return an unused name: the given one, or the same with a number."""
        name = base
        while name in self._taken:
            self._counts[base] += 1
            name = f"{base}_{self._counts[base]}"
        self._taken.add(name)
        return name

    @property
    def is_exact(self) -> bool:
        """Whether the traced model is the recorded one, node for node."""
        return self.record.get("digest") == self.digest()

    def digest(self) -> str:
        """Return a hash of the structure: nodes, attributes, wiring, types of inputs."""
        whole = hashlib.blake2b(digest_size=16)
        for trace in self.traces:
            parts = [
                trace.names.key,
                *(f"{v.name} {v.type} {v.shape}" for v in trace.inputs),
            ]
            parts += [
                f"{v.name} {v.type} {v.shape}" for v in trace.initializers.values()
            ]
            parts += [value.name or "" for value in trace.outputs]
            whole.update("\n".join(parts).encode())
            for node in trace.nodes:
                # Its names are places in the Python here: `apply` comes later.
                proto = ir.to_proto(node)
                whole.update(proto.SerializeToString(deterministic=True))
        return whole.hexdigest()

    def apply(self, defaults: Defaults, *, exact: bool) -> None:
        """Give every node its name, origin and place; and its types, if they are still right."""
        for trace in self.traces:
            trace.names.apply(trace, defaults, exact=exact)

    def metadata(self, number: int) -> dict[str, str]:
        """Return an entry of the table of metadata."""
        return dict(self.record["metadata"][number])

    def type(self, number: int) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
        """Return an entry of the table of types."""
        return decoded_type(self.record["types"][number])


class GraphNames:
    """What is recorded of one graph or function."""

    def __init__(self, whole: RecordedNames, key: str, record: dict[str, Any]) -> None:
        """Take the part of ``model.names.json`` for a graph."""
        self.whole = whole
        self.key = key
        self.record = record
        self.nodes = {entry[0]: entry for entry in record.get("nodes", ())}

    def inner(self, site: str) -> GraphNames:
        """Return what is recorded of a branch or loop body."""
        return self.whole.graph(f"{self.key}|{site}")

    def unused(self, base: str) -> str:
        """Return an unused name."""
        return self.whole.unused(base)

    def constant(self, key: str, use: int) -> tuple[int, bool, str] | None:
        """Return where the constant is that the n-th use means: levels up, as a node, its name."""
        uses = self.record.get("constants", {}).get(key)
        if not uses:
            return None
        # An edited model may use a constant more often than the recorded one.
        levels, as_node, name = uses[min(use, len(uses) - 1)]
        return levels, as_node, name

    def finished(self, trace: Trace) -> None:
        """Remember a graph that has been traced."""
        self.whole.traces.append(trace)

    def apply(self, trace: Trace, defaults: Defaults, *, exact: bool) -> None:
        """Name the nodes and values of a graph."""
        graph = trace.result
        graph.name = self.record.get("name", self._default_name())
        if "doc" in self.record:
            graph.doc_string = self.record["doc"]
        graph.metadata_props.update(self.record.get("metadata", {}))
        for value, name in zip(
            trace.inputs, self.record.get("inputs", ()), strict=False
        ):
            value.name = name
        for site, node in trace.sites.items():
            self._name(node, site, defaults, trace.opsets)
        if exact:
            self._order(graph, trace)
            self._types(trace)

    def _default_name(self) -> str | None:
        """Return the name of the main graph or a branch; functions have one of their own."""
        if not self.key:
            return "main_graph"
        return "branch" if "|" in self.key else None

    def _name(
        self, node: ir.Node, site: str, defaults: Defaults, opsets: Mapping[str, int]
    ) -> None:
        entry = self.nodes.get(site)
        # In an edited model, another node may be at a recorded place.
        if entry is None or len(entry[2]) != len(node.outputs):
            node.name = self.unused(site.partition(" ")[0].replace("#", "_"))
            for value in node.outputs:
                value.name = self.unused(f"{node.name}_output")
            return
        _, node.name, outputs, *rest = entry
        for value, name in zip(node.outputs, outputs, strict=True):
            value.name = name
        options = rest[0] if rest else {}
        node.doc_string = options.get("doc")
        if "metadata" in options:
            node.metadata_props.update(self.whole.metadata(options["metadata"]))
        if "constant" in options:
            _spell(node, options["constant"])
        for name, text in options.get("tensors", {}).items():
            node.attributes[name].as_tensor().name = text
        if "attributes" in options:
            _present(node, options["attributes"], _defaults(node, defaults, opsets))

    def _order(self, graph: ir.Graph, trace: Trace) -> None:
        """Move constants to where they were: a literal makes its node where it is first used."""
        ranks = {site: rank for rank, site in enumerate(self.nodes)}
        if ranks.keys() != trace.sites.keys():
            return
        nodes = list(graph)
        ordered = sorted(trace.sites, key=ranks.__getitem__)
        if [trace.sites[site] for site in ordered] != nodes:
            graph.remove(nodes)
            graph.extend(trace.sites[site] for site in ordered)
        kept = self.record.get("initializers", ())
        if set(kept) == set(graph.initializers):
            values = [graph.initializers[name] for name in kept]
            graph.initializers.clear()
            for value in values:
                graph.register_initializer(value)

    def _types(self, trace: Trace) -> None:
        types = self.record.get("value_types", {})
        values = [
            *trace.inputs,
            *(v for node in trace.sites.values() for v in node.outputs),
        ]
        for value in (*values, *trace.initializers.values()):
            if value.name in types:
                value.type, value.shape = self.whole.type(types[value.name])


def _names_in(graph: dict[str, Any]) -> Iterable[str]:
    yield from graph.get("initializers", ())
    yield from graph.get("inputs", ())
    for entry in graph.get("nodes", ()):
        yield from (entry[1], *entry[2])


def _defaults(
    node: ir.Node, functions: Defaults, opsets: Mapping[str, int]
) -> dict[str, ir.Attr]:
    function = functions.get(node.op_identifier())
    if function is not None:
        return function
    schema = schema_of(node.domain, node.op_type, opsets)
    items = {} if schema is None else schema.attributes
    defaults = {name: default_of(item) for name, item in items.items()}
    return {name: value for name, value in defaults.items() if value is not None}


def _present(node: ir.Node, names: Sequence[str], defaults: dict[str, ir.Attr]) -> None:
    """Write a default value out where the recorded node did, and nowhere else."""
    present = dict(node.attributes.items())
    for name in names:
        if name not in present and name in defaults:
            present[name] = defaults[name]
    for name in [name for name in present if name not in names]:
        if name in defaults and same_attribute(present[name], defaults[name]):
            del present[name]
    ordered = [*(name for name in names if name in present), *present]
    node.attributes.clear()
    for name in dict.fromkeys(ordered):
        node.attributes.add(present[name])


def same_attribute(left: ir.Attr, right: ir.Attr) -> bool:
    """Return whether two attributes have the same type and value, to the bit."""
    protos: list[bytes] = []
    for item in (left, right):
        proto = ir.to_proto(item)
        proto.name = proto.doc_string = ""
        protos.append(proto.SerializeToString(deterministic=True))
    return protos[0] == protos[1]


def _spell(node: ir.Node, name: str) -> None:
    """Write a Constant with one of its other attributes: ``value_ints`` for a list of integers."""
    tensor = node.attributes["value"].as_tensor()
    if isinstance(tensor, ir.StringTensor):
        items = [text.decode() for text in tensor.string_data()]
    else:
        items = tensor.numpy().reshape(-1).tolist()
    kind = ir.AttributeType[name.removeprefix("value_").upper()]
    node.attributes.clear()
    node.attributes.add(ir.Attr(name, kind, items if name.endswith("s") else items[0]))


def encoded_type(value: ir.Value) -> Any:
    """Return a value's type and shape for ``model.names.json``."""
    simple = isinstance(value.type, ir.TensorType) and value.type.denotation is None
    if simple and isinstance(value.type, ir.TensorType):
        if value.shape is None:
            return [value.type.dtype.name, None]
        dims = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
        if all(value.shape.get_denotation(axis) is None for axis in range(len(dims))):
            return [value.type.dtype.name, dims]
    # Sequences, optionals and denotations are rare, and have no short form.
    proto = onnx.ValueInfoProto()
    ir.serde.serialize_value_into(proto, value)
    return base64.b64encode(proto.type.SerializeToString(deterministic=True)).decode()


def decoded_type(entry: Any) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
    """Return the type and shape of an entry."""
    if isinstance(entry, str):
        proto = onnx.TypeProto.FromString(base64.b64decode(entry))
        return ir.serde.deserialize_type_proto_for_type(
            proto
        ), ir.serde.deserialize_type_proto_for_shape(proto)
    dtype, dims = entry
    return ir.TensorType(ir.DataType[dtype]), None if dims is None else ir.Shape(dims)
