"""Types and shapes of all values of a model, and their contradictions: inference once per body.

ONNX's own inference enters a function at every call, which takes exponential time where functions
call functions twice. Here each body is inferred once for all calls with the same types. ONNX's
inference does not see the calls: the types of their results are given to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir

from coreai_onnx.model.standard.model_protos import (
    Attributes,
    body_input_types,
    constant_tensor,
    declared_type,
    frozen,
    is_small,
    node_proto,
    small_proto,
    subgraphs,
    type_of_tensor,
    values_read,
    without_shape,
)
from coreai_onnx.model.standard.onnx_rules import (
    Opsets,
    contradiction,
    infer,
    rename_generated,
    without_generated,
)
from coreai_onnx.model.standard.op_schemas import has_schema

VARIANTS = 64
"""Maximum number of shape signatures, and of dtype signatures, for which a function is inferred;
the results of further calls are unknown."""

Type = onnx.TypeProto
FunctionOf = Callable[[ir.Node], ir.Function | None]
"""Returns the function that a node calls; None if the node is not a call."""


@dataclass(frozen=True)
class Fault:
    """A node whose inputs, outputs or attributes violate the ONNX specification.

    Attributes:
        node: The node.
        what: What is wrong with it.
        callers: The call stack from the main graph to the node; empty in the main graph.
        function: The function that holds the node; None in the main graph.
        inputs: Types of its inputs, None where unknown.
    """

    node: ir.Node
    what: str
    callers: tuple[ir.Node, ...] = ()
    function: ir.Function | None = None
    inputs: tuple[Type | None, ...] = ()


@dataclass(frozen=True)
class _PendingCall:
    """A call whose result types a walk requests."""

    node: ir.Node
    function: ir.Function
    arguments: tuple[Type | None, ...]
    attributes: Attributes


_Results = tuple["Type | None", ...]
_Walking = Generator[_PendingCall, _Results, None]


class ModelTypes:
    """Infers types through the calls of a model.

    Attributes:
        faults: The contradictions, in the order in which they were found.
    """

    def __init__(
        self,
        function_of: FunctionOf,
        ir_version: int,
        *,
        data_propagation: bool = False,
        bodies: bool = False,
    ) -> None:
        """Start with nothing inferred.

        Args:
            function_of: Returns the function that a node calls, if any.
            ir_version: The IR version of the model.
            data_propagation: Whether to compute the values of small shape tensors as well; faults
                are not found then.
            bodies: Whether to return the types of the values in subgraphs too.
        """
        self.function_of, self.ir_version = function_of, ir_version
        self.data_propagation, self.bodies = data_propagation, bodies
        self.faults: list[Fault] = []
        # Without it, 40 functions that each call the next twice take 2 ** 40 inferences.
        self._done: dict[tuple[Any, ...], _Results] = {}
        self._open: set[tuple[Any, ...]] = set()
        self._variants: Counter[tuple[int, bool]] = Counter()

    def of_graph(self, graph: ir.Graph) -> dict[ir.Value, Type]:
        """Return the types of the values in a main graph; declared types are used."""
        walk = _Walk(self, graph.opset_imports, declared=True)
        self._drive(walk, walk.run(graph))
        return walk.known

    def of_function(
        self, function: ir.Function, arguments: Sequence[Type | None]
    ) -> dict[ir.Value, Type]:
        """Return the types of the values in a function's body for a call with the given types."""
        walk = self._body(_PendingCall(None, function, tuple(arguments), {}))  # type: ignore[arg-type]
        self._drive(walk, walk.run(function.graph))
        return walk.known

    def _body(self, call: _PendingCall) -> _Walk:
        walk = _Walk(self, call.function.opset_imports, call.attributes, function=call.function)
        for value, kind in zip(call.function.inputs, call.arguments, strict=False):
            if kind is not None:
                walk.known[value] = kind
        return walk

    def _drive(self, walk: _Walk, steps: _Walking) -> None:
        """Run a walk and those of the functions it calls; calls may be nested to any depth."""
        stack: list[tuple[_Walk, _Walking, tuple[Any, ...]]] = [(walk, steps, ())]
        results: _Results | None = None
        while stack:
            walk, steps, key = stack[-1]
            try:
                call = steps.send(results)  # type: ignore[arg-type]  # the first send takes None
            except StopIteration:
                stack.pop()
                if walk.function is not None:
                    results = tuple(walk.exported(value) for value in walk.function.outputs)
                    self._done[key] = results
                    self._open.discard(key)
                continue
            call, variant = self._variant(call)
            # The results of recursive calls and of calls beyond the limit are unknown.
            results = (None,) * len(call.function.outputs)
            if variant is not None and variant not in self._open:
                results = self._done.get(variant)
            if results is None and variant is not None:
                body = self._body(call)
                body.callers = (*walk.callers, call.node)
                self._open.add(variant)
                stack.append((body, body.run(call.function.graph), variant))

    def _variant(self, call: _PendingCall) -> tuple[_PendingCall, tuple[Any, ...] | None]:
        """Return the call with the types that select its variant, and the key of the variant."""
        # Beyond the limit without shapes, so that at least dtypes are known.
        for shapes in (True, False):
            arguments = call.arguments if shapes else tuple(map(without_shape, call.arguments))
            key = (
                id(call.function),
                tuple(t.SerializeToString(deterministic=True) if t else b"" for t in arguments),
                tuple((name, frozen(attr)) for name, attr in sorted(call.attributes.items())),
            )
            if key in self._done or key in self._open:
                return call, key
            if self._variants[id(call.function), shapes] < VARIANTS:
                self._variants[id(call.function), shapes] += 1
                return _PendingCall(call.node, call.function, arguments, call.attributes), key
        return call, None


class _Walk:
    """One walk over the nodes of a graph or a function body, in their order."""

    def __init__(
        self,
        types: ModelTypes,
        opsets: Opsets,
        attributes: Attributes | None = None,
        *,
        function: ir.Function | None = None,
        declared: bool = False,
        known: dict[ir.Value, Type] | None = None,
    ) -> None:
        self.types, self.opsets, self.attributes = types, opsets, attributes or {}
        self.function, self.declared = function, declared
        self.known: dict[ir.Value, Type] = {} if known is None else known
        self.callers: tuple[ir.Node, ...] = ()
        self._small: dict[ir.Value, ir.TensorProtocol] = {}
        # Nodes wait until the type of a result is needed: each run of ONNX's inference serializes a
        # graph.
        self._waiting: list[ir.Node] = []
        self._sizes = 0

    def run(self, graph: ir.Graph) -> _Walking:
        """Infer the types of all values; yields the calls whose results it needs."""
        for value in (*graph.inputs, *graph.initializers.values()):
            self._enter(value)
        for node in graph:
            yield from self._node(node)
        self._infer()

    def exported(self, value: ir.Value) -> Type | None:
        """Return the type of a value without the size names that are local to this graph."""
        kind = self.known.get(value)
        return None if kind is None else without_generated(kind)

    def _enter(self, value: ir.Value) -> None:
        tensor = value.const_value
        if tensor is not None and not value.is_graph_input():
            self.known[value] = type_of_tensor(tensor)
            if is_small(tensor):
                self._small[value] = tensor
        elif self.declared and value not in self.known and (kind := declared_type(value)):
            self.known[value] = kind

    def _node(self, node: ir.Node) -> _Walking:
        callee = self.types.function_of(node)
        tensor = constant_tensor(node)
        if tensor is not None and not is_small(tensor):
            self.known[node.outputs[0]] = type_of_tensor(tensor)
        elif callee is not None:
            yield from self._call(node, callee)
        elif not has_schema(node.domain, node.op_type, self.opsets):
            self._declare(node)
        else:
            yield from self._subgraphs(node)
            self._waiting.append(node)
            self._declare(node)
            if tensor is not None:
                self._small[node.outputs[0]] = tensor

    def _declare(self, node: ir.Node) -> None:
        """Use the types that the model declares for a node's results until more is known."""
        for value in node.outputs if self.declared else ():
            if kind := declared_type(value):
                self.known[value] = kind

    def _call(self, node: ir.Node, callee: ir.Function) -> _Walking:
        operands = [value for value in node.inputs if value is not None]
        if any(value not in self.known for value in operands):
            self._infer()
        if len(node.inputs) > len(callee.inputs) or len(node.outputs) > len(callee.outputs):
            self._fault(
                node,
                f"has {len(node.inputs)} inputs and {len(node.outputs)} outputs, its function has "
                f"{len(callee.inputs)} and {len(callee.outputs)}",
            )
            return
        arguments = tuple(self.exported(v) if v is not None else None for v in node.inputs)
        results = yield _PendingCall(node, callee, arguments, self._bound(node, callee))
        self._declare(node)
        for value, kind in zip(node.outputs, results, strict=False):
            if kind is None:
                continue
            said = self.known.setdefault(value, kind)
            if wrong := contradiction(kind, said):
                self._fault(node, f"{value.name!r} {wrong}")

    def _bound(self, node: ir.Node, callee: ir.Function) -> Attributes:
        """Return the attributes that the body of a called function sees."""
        bound = {k: a for k, a in callee.attributes.items() if a.value is not None}
        for name, attribute in node.attributes.items():
            if not attribute.is_ref():
                bound[name] = attribute
            elif (value := self.attributes.get(attribute.ref_attr_name or "")) is not None:
                bound[name] = value
        return bound

    def _subgraphs(self, node: ir.Node) -> _Walking:
        """Infer the calls inside a node's subgraphs, which ONNX's inference does not see."""
        for inner in subgraphs(node):
            if not self.types.bodies and not any(self._is_hidden(one) for one in inner.all_nodes()):
                continue
            self._infer()
            walk = _Walk(
                self.types,
                self.opsets,
                self.attributes,
                function=self.function,
                declared=self.declared,
                known=self.known,
            )
            # Shared, because a subgraph reads constants of the graphs around it.
            walk.callers, walk._small = self.callers, self._small
            self.known.update(body_input_types(node, inner, self.known))
            yield from walk.run(inner)

    def _is_hidden(self, node: ir.Node) -> bool:
        has_rule = has_schema(node.domain, node.op_type, self.opsets)
        return not has_rule or self.types.function_of(node) is not None

    def _fault(self, node: ir.Node, what: str) -> None:
        inputs = tuple(self.known.get(v) if v is not None else None for v in node.inputs)
        self.types.faults.append(Fault(node, what, self.callers, self.function, inputs))

    # ------------------------------------------------------------------ one run of the inference
    def _infer(self) -> None:
        if not self._waiting:
            return
        nodes, self._waiting = self._waiting, []
        produced = {value.name: value for node in nodes for value in node.outputs if value.name}
        numbered: list[ir.Node] = []
        protos = [self._proto(node, numbered) for node in nodes]
        outer = [v for v in values_read(numbered) if produced.get(v.name or "") is not v]
        graph = onnx.GraphProto(
            name="graph",
            node=protos,
            input=[self._info(v) for v in outer if v in self.known and v not in self._small],
            initializer=[
                small_proto(t, v.name or "") for v in outer if (t := self._small.get(v)) is not None
            ],
            value_info=[self._info(v) for v in produced.values() if v in self.known],
        )
        outcome = infer(
            graph,
            self.opsets,
            self.types.ir_version,
            data_propagation=self.types.data_propagation,
        )
        new = {v: t for name, t in outcome.types.items() if (v := produced.get(name)) is not None}
        # Names that were read come from an earlier run, and keep their numbers.
        before = frozenset(
            dim.dim_param for info in graph.input for dim in info.type.tensor_type.shape.dim
        )
        self._sizes = rename_generated(new.values(), before, self._sizes)
        self.known |= new
        for fault in outcome.faults:
            if self._is_certain(numbered[fault.outer]):
                self._fault(numbered[fault.number], fault.what)

    def _is_certain(self, node: ir.Node) -> bool:
        """Return whether all types are known that a fault in a node could be caused by."""
        inner = [one for graph in subgraphs(node) for one in graph.all_nodes()]
        inside = {value for one in inner for value in one.outputs}
        inside |= {value for one in (node, *inner) for g in subgraphs(one) for value in g.inputs}
        hidden = {value for one in inner if self._is_hidden(one) for value in one.outputs}
        needed = hidden | {v for v in values_read([node, *inner]) if v not in inside}
        return all(value in self.known for value in needed)

    def _info(self, value: ir.Value) -> onnx.ValueInfoProto:
        return onnx.ValueInfoProto(name=value.name, type=self.known[value])

    def _proto(self, node: ir.Node, numbered: list[ir.Node]) -> onnx.NodeProto:
        """Return a node with its number as its name and the function's attributes substituted."""
        proto = node_proto(node, str(len(numbered)), self.attributes if self.function else None)
        numbered.append(node)
        for attribute in proto.attribute:
            source = node.attributes[attribute.name]
            if source.type == ir.AttributeType.GRAPH:
                attribute.g.CopyFrom(self._graph(source.as_graph(), numbered))
            elif source.type == ir.AttributeType.GRAPHS:
                for target, inner in zip(attribute.graphs, source.as_graphs(), strict=True):
                    target.CopyFrom(self._graph(inner, numbered))
        return proto

    def _graph(self, graph: ir.Graph, numbered: list[ir.Node]) -> onnx.GraphProto:
        """Return a subgraph without the nodes that ONNX does not know; their results are typed."""
        typed = [
            value
            for node in graph
            for value in node.outputs
            if value in self.known and not value.is_graph_output()
        ]
        return onnx.GraphProto(
            name=graph.name or "graph",
            input=[self._info_or_name(value, declared=True) for value in graph.inputs],
            output=[self._info_or_name(value, declared=self.declared) for value in graph.outputs],
            value_info=[self._info(value) for value in typed],
            initializer=[
                ir.serde.serialize_tensor(v.const_value)
                for v in graph.initializers.values()
                if v.const_value is not None
            ],
            node=[self._proto(node, numbered) for node in graph if not self._is_hidden(node)],
        )

    def _info_or_name(self, value: ir.Value, *, declared: bool) -> onnx.ValueInfoProto:
        if value in self.known:
            return self._info(value)
        kind = declared_type(value) if declared else None
        return onnx.ValueInfoProto(name=value.name or "", type=kind)
