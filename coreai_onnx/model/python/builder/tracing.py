"""Functions that call operators, traced to graphs: ``op.MatMul(x, w)`` adds a node."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Protocol

from onnxscript import ir

from .attributes import AttributeReference, attribute, declared_types
from .errors import failure, place
from .schemas import check_call, default_outputs
from .tensors import constant, content_key, in_memory, type_and_shape
from .weights import StoredWeight


@dataclass
class Call:
    """A call of an operator.

    Attributes:
        domain: Domain of the operator.
        op_type: Its name.
        overload: Overload of a function; empty for operators.
        types: Types of the attributes, as far as they are known.
        outputs: Number of outputs; None if the operator's schema says it.
        is_unchecked: Whether the call may be one that ONNX's schemas do not allow.
    """

    domain: str
    op_type: str
    overload: str = ""
    types: Mapping[str, ir.AttributeType] | None = None
    outputs: int | None = None
    is_unchecked: bool = False


class TraceNames(Protocol):
    """Names of the values of a graph; ``names.GraphNames`` reads them from ``model.names.json``.

    Attributes:
        key: The place of the graph in the model.
    """

    key: str

    def inner(self, site: str) -> TraceNames:
        """Return the names of a subgraph."""

    def unused(self, base: str) -> str:
        """Return an unused name."""

    def constant(self, key: str, use: int) -> tuple[int, bool, str] | None:
        """Return how a constant is stored; None if that is not recorded."""

    def finished(self, trace: Trace) -> None:
        """Take note of a finished graph."""

    def apply(self, trace: Trace, defaults: Any, *, exact: bool) -> None:
        """Name the nodes and values of a graph."""


class Trace:
    """A graph that grows while a Python function runs."""

    def __init__(
        self,
        names: TraceNames,
        opsets: Mapping[str, int],
        *,
        outer: Trace | None = None,
        is_function: bool = False,
    ) -> None:
        """Start an empty graph.

        Args:
            names: The names that the nodes get, see `names`.
            opsets: Versions of the operator sets.
            outer: The graph that this one is a branch or a loop body of.
            is_function: Whether constants become nodes, because a function has no initializers.
        """
        self.names = names
        self.opsets = opsets
        self.outer = outer
        self.is_function = is_function
        self.nodes: list[ir.Node] = []
        self.sites: dict[str, ir.Node] = {}
        self.places: dict[str, str] = {}
        self.literals: set[str] = set()
        self.inputs: list[ir.Value] = []
        self.outputs: list[ir.Value] = []
        self.initializers: dict[str, ir.Value] = {}
        self.result: ir.Graph
        self._constants: dict[object, ir.Value] = {}
        self._uses: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._frames: list[tuple[FrameType, str]] = []
        self._mine: set[ir.Value] = set()

    @property
    def root(self) -> Trace:
        """The graph or function that encloses all branches."""
        return self if self.outer is None else self.outer.root

    # ------------------------------------------------------------------ tracing a function
    def run(
        self, function: Callable[..., Any], arguments: Sequence[Any], **named: Any
    ) -> None:
        """Call a function with this graph as the current one, and keep what it returns."""
        before = _current.set(self)
        try:
            result = self._called(function, arguments, named)
            values = result if isinstance(result, tuple | list) else (result,)
            self.outputs = [self.value(value, function.__code__) for value in values]
        finally:
            _current.reset(before)
            # Frames would keep the local variables of finished functions alive.
            self._frames.clear()

    def _called(self, function: Callable[..., Any], values: Any, named: Any) -> Any:
        """Mark the boundary: frames further out belong to other graphs."""
        return function(*values, **named)

    def add_input(self, name: str, annotation: Any) -> ir.Value:
        """Append an input of the graph."""
        type_, shape = type_and_shape(annotation)
        value = ir.Value(name=name, type=type_, shape=shape)
        self.inputs.append(value)
        self._mine.add(value)
        return value

    # ------------------------------------------------------------------ nodes
    def node(
        self,
        call: Call,
        inputs: Sequence[Any],
        attributes: Mapping[str, Any],
        frame: FrameType,
    ) -> Any:
        """Append a node; return its output, or a tuple of them."""
        if not call.is_unchecked:
            check_call(
                call.domain, call.op_type, len(inputs), attributes, self.opsets, frame
            )
        types = call.types or declared_types(call.domain, call.op_type, self.opsets)
        # Before the node: a literal among the inputs makes a node of its own.
        values = [None if item is None else self.value(item, frame) for item in inputs]
        site = self._site(call.op_type, frame)
        parameters = [
            self._attribute(name, value, types.get(name), site, frame)
            for name, value in attributes.items()
        ]
        count = call.outputs
        if count is None:
            count = default_outputs(call.domain, call.op_type, self.opsets)
        node = ir.Node(
            call.domain,
            call.op_type,
            values,
            parameters,
            overload=call.overload,
            num_outputs=count,
            # A name until `names` finds the recorded one by it.
            name=site,
        )
        self._append(node, site, place(frame))
        return node.outputs[0] if count == 1 else node.outputs

    def copied(self, value: ir.Value) -> ir.Value:
        """Return a copy of a value, which a new node makes."""
        node = ir.Node("", "Identity", [value])
        self._append(node, self._counted("Identity"), "")
        return node.outputs[0]

    def _append(self, node: ir.Node, site: str, where: str) -> None:
        for number, value in enumerate(node.outputs):
            value.name = f"{site}:{number}"
            self._mine.add(value)
        self.nodes.append(node)
        self.sites[site] = node
        self.places[site] = where

    def _attribute(
        self,
        name: str,
        value: Any,
        kind: ir.AttributeType | None,
        site: str,
        frame: FrameType,
    ) -> ir.Attr:
        if isinstance(value, AttributeReference):
            return value.attribute(name, kind, frame)
        if callable(value) and not isinstance(value, type):
            graph = self._branch(value, f"{site}.{name}")
            return ir.Attr(name, ir.AttributeType.GRAPH, graph)
        if isinstance(value, list) and value and all(callable(item) for item in value):
            graphs = [
                self._branch(item, f"{site}.{name}.{i}") for i, item in enumerate(value)
            ]
            return ir.Attr(name, ir.AttributeType.GRAPHS, graphs)
        return attribute(name, value, kind, frame)

    def _branch(self, function: Callable[..., Any], site: str) -> ir.Graph:
        """Trace a function to the graph of an attribute; its parameters are the inputs."""
        inner = Trace(self.names.inner(site), self.opsets, outer=self)
        code = function.__code__
        notes = inspect.get_annotations(function, eval_str=True)
        for name in code.co_varnames[: code.co_argcount]:
            inner.add_input(name, notes.get(name))
        inner.run(function, list(inner.inputs))
        return inner.graph()

    def graph(self) -> ir.Graph:
        """Return the graph; its names follow when all graphs are there."""
        self.result = ir.Graph(
            self.inputs,
            self.outputs,
            nodes=self.nodes,
            initializers=list(self.initializers.values()),
            # ONNX has opsets for models and functions, not for subgraphs.
            opset_imports=dict(self.opsets) if self.outer is None else {},
        )
        self.names.finished(self)
        return self.result

    def _site(self, op_type: str, frame: FrameType) -> str:
        """Return the place of a node: the functions that are being called, and the operator.

        It stays the same if another function is edited: ``layer#3/mlp/MatMul#1``.
        """
        stack = []
        while frame.f_code is not Trace._called.__code__:
            stack.append(frame)
            assert frame.f_back is not None
            frame = frame.f_back
        path = ""
        for depth, active in enumerate(reversed(stack[:-1])):
            if depth < len(self._frames) and self._frames[depth][0] is active:
                path = self._frames[depth][1]
                continue
            # From this depth on, other calls are active than when the last node was
            # made.
            del self._frames[depth:]
            path = self._counted(path + active.f_code.co_name) + "/"
            self._frames.append((active, path))
        del self._frames[max(len(stack) - 1, 0) :]
        return self._counted(path + op_type)

    def _counted(self, name: str) -> str:
        count = self._calls[name]
        self._calls[name] += 1
        return f"{name}#{count}" if count else name

    # ------------------------------------------------------------------ values
    def value(self, item: Any, frame: FrameType | CodeType) -> ir.Value:
        """Return the value of the graph that an argument means; constants become one."""
        if isinstance(item, ir.Value):
            if not self._knows(item):
                raise failure(frame, f"{item.name!r} is a value of another graph")
            return item
        if isinstance(item, AttributeReference):
            raise failure(
                frame, f"{item.name!r} is an attribute; as a value: {item.advice}"
            )
        key = item.name if isinstance(item, StoredWeight) else ""
        try:
            tensor = item.load() if isinstance(item, StoredWeight) else constant(item)
        except (TypeError, OverflowError) as error:
            raise failure(frame, str(error)) from None
        return self._constant(key or content_key(tensor), tensor, is_weight=bool(key))

    def _knows(self, value: ir.Value) -> bool:
        # A branch sees the values of the graphs around it, and none of them sees its
        # own.
        return value in self._mine or (
            self.outer is not None and self.outer._knows(value)
        )

    def _constant(
        self, key: str, tensor: ir.TensorProtocol, *, is_weight: bool
    ) -> ir.Value:
        use = self._uses[key]
        self._uses[key] += 1
        recorded = self.names.constant(key, use)
        # In the outermost graph, where all branches see it.
        home = self.root
        as_node, name = home.is_function, key if is_weight else ""
        if recorded is not None:
            levels, as_node, name = recorded
            home = self
            for _ in range(levels):
                home = home.outer or home
        return home.own_constant(key, name, tensor, as_node=as_node)

    def own_constant(
        self, key: str, name: str, tensor: ir.TensorProtocol, *, as_node: bool
    ) -> ir.Value:
        """Return the value of a constant of this graph; each is made once."""
        if (key, name) in self._constants:
            return self._constants[key, name]
        if as_node:
            node = ir.Node(
                "", "Constant", [], [ir.AttrTensor("value", in_memory(tensor))]
            )
            self.literals.add(f"{key}#{name}")
            self._append(node, f"{key}#{name}", "")
            value = node.outputs[0]
        else:
            value = self.add_initializer(name or self.names.unused("const"), tensor)
        self._constants[key, name] = value
        return value

    def add_initializer(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """Add an initializer, or give an input of that name its default value."""
        value = next((item for item in self.inputs if item.name == name), None)
        if value is None:
            value = ir.Value(
                name=name,
                type=ir.TensorType(tensor.dtype),
                shape=ir.Shape(tensor.shape.numpy()),
            )
        value.const_value = tensor
        self.initializers[name] = value
        self._mine.add(value)
        return value


class Opset:
    """The operators of a domain: ``op.MatMul(x, w)``, or ``op["MatMul"](x, w)``."""

    def __init__(self, domain: str = "") -> None:
        """Name the domain; the version is that of the model, or of the function."""
        self._domain = domain

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        """Return the function that adds a node with this operator."""
        # copy, pickle and inspect ask for such names, and must not get operators.
        if op_type.startswith("__"):
            raise AttributeError(op_type)
        return self._operator(op_type, is_unchecked=False)

    def __getitem__(self, op_type: str) -> Callable[..., Any]:
        """Return an operator that ONNX does not define, or whose name is not an identifier."""
        return self._operator(op_type, is_unchecked=True)

    def _operator(self, op_type: str, *, is_unchecked: bool) -> Callable[..., Any]:
        def add(*inputs: Any, _outputs: int | None = None, **attributes: Any) -> Any:
            # The frame of the caller has the line that errors name.
            frame = sys._getframe(1)
            call = Call(
                self._domain, op_type, outputs=_outputs, is_unchecked=is_unchecked
            )
            return active(frame, op_type).node(call, inputs, attributes, frame)

        return add


op = Opset()
"""The operators of ONNX."""


def active(frame: FrameType, what: str) -> Trace:
    """Return the graph that is being traced.

    Raises:
        BuildError: If there is none.
    """
    trace = _current.get()
    if trace is None:
        raise failure(frame, f"{what} is called outside of the graph and its functions")
    return trace


_current: ContextVar[Trace | None] = ContextVar("_current", default=None)
"""The graph that is being traced; each thread has its own."""
