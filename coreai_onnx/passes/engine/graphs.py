"""The graphs of passes: graph-surgeon's classes, with the fields that the engine needs.

``from coreai_onnx.passes.engine import graphs as gs`` gives a pass typed classes of the same names.
A pass of a user may create objects of graph-surgeon itself: after the pass, `adopt_objects` makes
them objects of these classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, final

import numpy as np
import onnx
import onnx_graphsurgeon
import onnx_ir as ir

from coreai_onnx.model.contract import Contract
from coreai_onnx.passes.engine.surgeon_names import LazyValues
from coreai_onnx.targets.releases import Release

Kind = Literal["main", "function", "subgraph"]

if TYPE_CHECKING:  # graph-surgeon has no annotations: these are the members that passes use

    class _Tensor:
        name: str
        inputs: list[Node]
        outputs: list[Node]

        def is_empty(self) -> bool: ...

    class _Variable(_Tensor):
        dtype: Any
        shape: Any
        type: str

        def __init__(
            self, name: str, dtype: Any = None, shape: Any = None, type: str = "tensor_type"
        ) -> None: ...
        def to_constant(self, values: np.ndarray, export_dtype: Any = None) -> Any: ...

    class _AnyConstant(_Tensor):
        values: np.ndarray
        dtype = property(lambda self: self.values.dtype)
        shape = property(lambda self: self.values.shape)

        def __init__(self, name: str, values: np.ndarray | LazyValues) -> None: ...

    class _Node:
        AttributeRef = onnx_graphsurgeon.Node.AttributeRef
        op: str
        name: str
        attrs: dict[str, Any]
        inputs: list[Tensor]
        outputs: list[Variable]
        domain: str | None

        def __init__(
            self,
            op: str,
            name: str | None = None,
            attrs: dict[str, Any] | None = None,
            inputs: Sequence[Tensor] | None = None,
            outputs: Sequence[Variable] | None = None,
            domain: str | None = None,
        ) -> None: ...

    class _Graph:
        name: str
        nodes: list[Node]
        inputs: list[Variable]
        outputs: list[Tensor]
        functions: list[Function]
        doc_string: str
        opset: int
        import_domains: Sequence[onnx.OperatorSetIdProto] | None
        producer_name: str
        producer_version: str
        ir_version: int

        def __init__(self, *args: Any, **parts: Any) -> None: ...
        def cleanup(self, *, recurse_subgraphs: bool, recurse_functions: bool) -> None: ...

    class _Function(_Graph):
        domain: str
        attrs: dict[str, Any]

else:
    _Variable, _AnyConstant = onnx_graphsurgeon.Variable, onnx_graphsurgeon.Constant
    _Node, _Function = onnx_graphsurgeon.Node, onnx_graphsurgeon.Function
    _Graph = onnx_graphsurgeon.Graph


class Operation(Protocol):
    """What the matchers of nodes read: of a `Node`, or of an operator without its Casts."""

    @property
    def op(self) -> str:
        """Its op type."""

    @property
    def domain(self) -> str | None:
        """Its domain."""

    @property
    def attrs(self) -> Mapping[str, Any]:
        """Its attributes."""

    @property
    def inputs(self) -> Sequence[Tensor]:
        """Its operands."""

    @property
    def outputs(self) -> Sequence[Variable]:
        """Its results."""


class UniqueNames:
    """The names used in one main graph or function body, subgraphs included.

    Graph-surgeon silently treats two tensors with one name as the same tensor, so every name is
    assigned here.
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def claim(self, name: str) -> str:
        """Reserve and return ``name``, or ``name_1``, ``name_2`` … if it is in use."""
        unique = name
        while unique in self._taken:
            # The count is kept: a search from 1 would take quadratic time for equal names.
            self._next[name] = self._next.get(name, 0) + 1
            unique = f"{name}_{self._next[name]}"
        self._taken.add(unique)
        return unique


class Weight(LazyValues):
    """Data of a `Constant` that wraps the tensor object of the ``onnx_ir`` model.

    Import and export copy nothing; ``load`` returns a read-only view if the tensor supports one.

    Attributes:
        source: The tensor of the ``onnx_ir`` model.
        shape: Its shape, a list of int.
        dtype: Its numpy dtype (of ``ml_dtypes`` for bfloat16, float8, int4, ...).
        nbytes: Its size in the file.
    """

    def __init__(self, source: ir.TensorProtocol) -> None:
        self.source = source
        self.shape = [int(dim) for dim in source.shape.numpy()]
        self.dtype = source.dtype.numpy()
        self._loaded: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        """Size in bytes; for strings, the number of elements."""
        return int(
            self.source.size if self.source.dtype == ir.DataType.STRING else self.source.nbytes
        )

    @property
    def tensor(self) -> onnx.TensorProto:
        """The data as a proto; used only by graph-surgeon's own exporter."""
        return ir.to_proto(self.source)

    def load(self) -> np.ndarray:
        """Return the values as a read-only array."""
        if self._loaded is None:
            view = np.asarray(self.source.numpy()).view()
            view.flags.writeable = False
            self._loaded = view
        return self._loaded

    def holds(self, values: object) -> bool:
        """Whether ``values`` (of a constant) are still this weight, loaded or not."""
        return values is self or (self._loaded is not None and values is self._loaded)


# The fields are class attributes and not slots: objects of graph-surgeon have a ``__dict__``, and
# `adopt_objects` can change their class only if both classes have the same layout. Nodes and
# tensors are compared by identity: graph-surgeon compares tensors by name, and nodes by all parts.


@final
class Variable(_Variable):
    """A tensor whose value is computed, or an input.

    Attributes:
        origin: The value it was imported from: metadata, and type and shape while unchanged.
    """

    origin: ir.Value | None = None

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @staticmethod
    def empty() -> Variable:
        """Return a tensor without a name, which is an absent input or output."""
        return Variable("")

    def to_constant(self, values: np.ndarray, export_dtype: Any = None) -> Constant:
        """Turn the variable into a constant of the same name."""
        constant: Constant = super().to_constant(values, export_dtype)
        constant.__class__ = Constant  # graph-surgeon has made it one of its own class
        return constant


class Constant(_AnyConstant):
    """A tensor whose value is known.

    Attributes:
        origin: The value it was imported from.
        weight: The data that it was imported with.
        node: The ``Constant`` node that it was; None for an initializer.
        position: The position of that node in its graph.
        maker: The node that computed it before it was folded, whose metadata it keeps.
    """

    origin: ir.Value | None = None
    weight: Weight | None = None
    node: ir.Node | None = None
    position: int = -1
    maker: ir.Node | None = None

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Node(_Node):
    """An operator.

    Attributes:
        origin: The node it was imported from, or created instead of: metadata, overload, untouched
            attributes.
        position: The position of that node in its graph; -1 for a node that a pass created.
    """

    origin: ir.Node | None = None
    position: int = -1

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Graph(_Graph):
    """The main graph, a function's body, or a subgraph of a node.

    Attributes:
        kind: Which of them.
        source: The graph or function it was imported from; None for a graph that a pass created.
        names: The names in use; one object for a root graph and all its subgraphs.
        constants: Initializers and ``Constant`` nodes in order, used or not.
        pure_calls: (domain, name) of the model's functions without random ops.
        bodies: The model's functions, which ``bodies.model_bodies`` returns; None until the runner
            sets it.
        contract: What the callers of a decoder feed; None if the file does not say.
        oldest: The oldest onnxruntime that must run the model; None for the newest.
    """

    kind: Kind = "subgraph"
    source: ir.Graph | ir.Function | None = None
    names: UniqueNames
    constants: list[Constant]
    pure_calls: frozenset[tuple[str, str]] = frozenset()
    bodies: object | None = None
    contract: Contract | None = None
    oldest: Release | None = None

    def __init__(self, *args: Any, **parts: Any) -> None:
        self.names, self.constants = UniqueNames(), []
        super().__init__(*args, **parts)


class FunctionBody(Graph, _Function):
    """The body of a function; `Function`, as graph-surgeon calls it."""

    kind: Kind = "function"


Function = FunctionBody
Tensor = Variable | Constant
AnyConstant = _AnyConstant
"""The class of every constant, also of one that a pass created as graph-surgeon's own."""
_CLASSES: dict[type, type] = {
    onnx_graphsurgeon.Variable: Variable,
    onnx_graphsurgeon.Constant: Constant,
    onnx_graphsurgeon.Node: Node,
}


def context_of(graph: Graph) -> Graph:
    """Return a graph of the engine.

    Raises:
        LookupError: The graph is graph-surgeon's own.
    """
    if not isinstance(graph, Graph):
        raise LookupError(
            f"graph {graph.name!r} did not come through coreai_onnx.passes.engine.surgeon"
        )
    return graph


def origin_of(node: Node) -> ir.Node | None:
    """Return the node that a node was imported from; None for one that a pass created."""
    return node.origin if isinstance(node, Node) else None  # a pass may hand in a plain gs.Node


def adopt_objects(root: Graph) -> None:
    """Make all parts of a root graph objects of this module, and register new constants.

    A constant that a pass created belongs to the root graph, where it is visible everywhere.
    """
    graphs = list(with_subgraphs(root))
    for graph in graphs:
        if not isinstance(graph, Graph):
            graph.__class__, graph.constants = Graph, []
        graph.names, graph.pure_calls, graph.bodies = root.names, root.pure_calls, root.bodies
        _adopt_parts(graph)
    owned = {constant for graph in graphs for constant in graph.constants}
    for tensor in reads_in(root):
        if isinstance(tensor, Constant) and tensor not in owned:
            owned.add(tensor)
            root.constants.append(tensor)


def _adopt_parts(graph: Graph) -> None:
    parts: Iterable[Any] = (
        graph.inputs,
        graph.outputs,
        graph.nodes,
        *(node.inputs for node in graph.nodes),
        *(node.outputs for node in graph.nodes),
    )
    for part in parts:
        for member in part:
            if type(member) in _CLASSES:
                member.__class__ = _CLASSES[type(member)]


def attribute_graphs(node: Node) -> list[Graph]:
    """Return the subgraphs that a node's attributes hold, in order."""
    graphs: list[Any] = []
    if not node.attrs:
        return graphs
    for value in node.attrs.values():
        if isinstance(value, _Graph):
            graphs.append(value)
        elif isinstance(value, list) and value and isinstance(value[0], _Graph):
            graphs.extend(value)
    return graphs


def reads_of(node: Node) -> Iterator[Tensor]:
    """Yield the tensors that a node reads, also inside its subgraphs."""
    yield from node.inputs
    for graph in attribute_graphs(node):
        yield from reads_in(graph)


def reads_in(root: Graph) -> Iterator[Tensor]:
    """Yield the tensors that the nodes of a graph and its subgraphs read, and their outputs."""
    for graph in with_subgraphs(root):
        for node in graph.nodes:
            yield from node.inputs
        yield from graph.outputs


def with_subgraphs(graph: Graph) -> Iterator[Graph]:
    """Yield ``graph`` and every graph inside it, outer before inner."""
    yield graph
    for node in graph.nodes:
        for inner in attribute_graphs(node):
            yield from with_subgraphs(inner)


def called_functions(graph: Graph, functions: Sequence[Function]) -> list[Function]:
    """Return the functions that a graph calls, directly or indirectly, in the given order."""
    bodies = {(f.domain, f.name): f for f in functions}
    used: set[tuple[str, str]] = set()
    waiting = [graph]
    while waiting:
        for inner in with_subgraphs(waiting.pop()):
            for node in inner.nodes:
                call = (node.domain or "", node.op)
                # Each body is searched once, and a recursion, which ONNX forbids, ends.
                if call in bodies and call not in used:
                    used.add(call)
                    waiting.append(bodies[call])
    return [f for f in functions if (f.domain, f.name) in used]
