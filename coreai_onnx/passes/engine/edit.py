"""Edits of a graph: replace a tensor, remove nodes, add nodes, in time linear in the change.

Graph-surgeon's synchronized lists compare nodes by value when they remove one, which is quadratic
for a tensor with thousands of readers; the methods here work by identity.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.constants import Compute, lazy_constant
from coreai_onnx.passes.engine.graphs import context_of, origin_of, with_subgraphs
from coreai_onnx.passes.engine.match import Dim, composite, is_standard, shape_of
from coreai_onnx.passes.engine.why import Why

_T = TypeVar("_T")
_P = ParamSpec("_P")


class Edit:
    """Changes to one graph on behalf of one pass, which ends with ``finish``."""

    def __init__(self, graph: gs.Graph) -> None:
        """Start without a change; analyses of the graph run when they are first needed."""
        self.graph = graph
        # By id: a user's pass may hand in objects of graph-surgeon itself, which have no hash.
        self._dead: set[int] = set()
        self._added: dict[int, list[gs.Node]] = {}
        self._shared: dict[Callable[..., Any], Any] = {}

    def once(self, create: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Return what ``create`` returns, one object for all rewrites of the pass."""
        if create not in self._shared:
            self._shared[create] = create(*args, **kwargs)
        shared: _T = self._shared[create]
        return shared

    @functools.cached_property
    def _outputs(self) -> set[int]:
        """The outputs of the graph and of its subgraphs: those tensors must stay."""
        return {id(t) for inner in with_subgraphs(self.graph) for t in inner.outputs}

    @functools.cached_property
    def _local(self) -> set[int]:
        return {id(t) for node in self._all_nodes() for t in node.outputs}

    @functools.cached_property
    def _nodes(self) -> set[int]:
        return {id(node) for node in self._all_nodes()}

    def _all_nodes(self) -> Iterator[gs.Node]:
        return itertools.chain(self.graph.nodes, *self._added.values())

    def holds(self, node: gs.Node) -> bool:
        """Whether ``node`` is in this graph itself, not in a subgraph or an outer graph."""
        return id(node) in self._nodes

    def is_output(self, tensor: gs.Tensor) -> bool:
        """Whether ``tensor`` is an output of this graph or of a subgraph."""
        return id(tensor) in self._outputs

    def replace(self, old: gs.Tensor, new: gs.Tensor) -> bool:
        """Make every reader of ``old`` read ``new``, which must be equal. False if impossible.

        A graph output keeps its name: the producer of ``new`` then writes ``old`` itself. That is
        impossible if ``new`` is an output too, or comes from elsewhere (an input, a constant).
        """
        if not self.is_output(old):
            _learn(new, old)
            _move_readers(old, new)
            return True
        if self.is_output(new) or id(new) not in self._local:
            return False
        # No node can write a constant, and outputs are written by nodes.
        if isinstance(old, gs.AnyConstant) or isinstance(new, gs.AnyConstant):
            return False
        _learn(old, new)
        _move_readers(new, old)
        _take_over_producer(new, old)
        return True

    def can_replace(self, old: gs.Tensor, new: gs.Tensor) -> bool:
        """Whether ``replace`` would succeed."""
        return not self.is_output(old) or (
            not self.is_output(new)
            and id(new) in self._local
            and not isinstance(old, gs.AnyConstant)
        )

    def bypass(self, node: gs.Node, source: gs.Tensor) -> bool:
        """Remove a node whose first output equals ``source``. False if its output must remain."""
        if not self.replace(node.outputs[0], source):
            return False
        self.remove(node)
        return True

    def bypass_or(self, why: Why, node: gs.Node, source: gs.Tensor) -> bool:
        """Remove a node like ``bypass``, or record that its output must remain."""
        return self.bypass(node, source) or why("it names a graph output", node)

    def absorb(self, node: gs.Node, source: gs.Tensor) -> None:
        """Remove a node whose first output the producer of ``source`` computes from now on.

        The output keeps its name, and that of ``source`` ends: a value of its name would no longer
        be the one that has this name in the exported program.

        Args:
            node: The node; nothing else reads ``source``.
            source: Its input, which a node of the graph produces.
        """
        assert not isinstance(source, gs.AnyConstant)
        _take_over_producer(source, node.outputs[0])
        self.remove(node)

    def retitle(self, tensor: gs.Tensor, name: str) -> None:
        """Give a tensor that now has another value than before a unique name from ``name``."""
        tensor.name = context_of(self.graph).names.claim(name)

    def remove(self, node: gs.Node) -> None:
        """Mark a node as dead; ``finish`` removes it from the graph."""
        self._dead.add(id(node))

    def is_removed(self, node: gs.Node) -> bool:
        """Whether ``node`` was removed already."""
        return id(node) in self._dead

    def finish(self) -> None:
        """Insert new nodes into the graph; remove dead ones from it and from their tensors' lists.

        Every pass must call it at its end.
        """
        if not self._dead and not self._added:
            return
        dead: list[gs.Node] = []
        kept: list[gs.Node] = []
        for node in self.graph.nodes:
            kept.extend(self._added.get(id(node), ()))
            (dead if id(node) in self._dead else kept).append(node)
        # One new list: each removal from graph-surgeon's list would search it from the start.
        self.graph.nodes = kept
        detach(dead)
        self._dead.clear()
        self._added.clear()

    def fix(self, tensor: gs.Variable, values: np.ndarray) -> None:
        """Turn a variable that is not a graph output into a constant of the same name."""
        maker = tensor.inputs[0] if tensor.inputs else None
        # A constant has no producer; the node that still lists it is removed by the pass.
        list.clear(tensor.inputs)
        constant = tensor.to_constant(np.asarray(values))
        constant.maker = None if maker is None else origin_of(maker)

    def become(
        self,
        node: gs.Node,
        op: str,
        inputs: Sequence[gs.Tensor],
        *,
        domain: str | None = None,
        **attrs: Any,
    ) -> None:
        """Replace the op and the inputs of a node; name, outputs and metadata remain."""
        # `detach` empties the lists of the node.
        outputs = list(node.outputs)
        detach([node])
        node.op, node.domain, node.attrs = op, domain, dict(attrs)
        node.inputs.extend(inputs)
        node.outputs.extend(outputs)

    def produce(self, node: gs.Node, tensor: gs.Variable) -> None:
        """Make ``node`` produce one more tensor, instead of the node that does."""
        _leave_producer(tensor)
        node.outputs.append(tensor)

    def constant(self, name: str, values: np.ndarray) -> gs.Constant:
        """Return a new constant with a unique name derived from ``name``."""
        return gs.Constant(context_of(self.graph).names.claim(name), np.asarray(values))

    def lazy(
        self,
        name: str,
        compute: Compute,
        sources: Sequence[gs.AnyConstant],
        shape: Sequence[int],
        dtype: np.dtype | None = None,
    ) -> gs.Constant:
        """Return a `lazy_constant` with a unique name derived from ``name``."""
        unique = context_of(self.graph).names.claim(name)
        return lazy_constant(unique, compute, sources, shape, dtype)

    def only_reader(self, tensor: gs.Tensor) -> gs.Node | None:
        """Return the node of this graph that alone reads a tensor; None if there is no such one."""
        if len(tensor.outputs) != 1 or self.is_output(tensor):
            return None
        return tensor.outputs[0] if self.holds(tensor.outputs[0]) else None

    def size(self, dim: Dim, like: gs.Node) -> gs.Tensor | None:
        """Return a vector of one int64 that holds the size of a dim, computed before ``like``.

        A named dim is read from an input of the graph that has it; None if there is none.
        """
        if isinstance(dim, int):
            return self.constant("size", np.array([dim], np.int64))
        for tensor in self.graph.inputs:
            shape = shape_of(tensor) or ()
            if dim is not None and dim in shape:
                axis = shape.index(dim)
                return self.node("Shape", like, [tensor], start=axis, end=axis + 1).outputs[0]
        return None

    def add(
        self,
        op: str,
        like: gs.Node,
        inputs: Sequence[gs.Tensor],
        dtype: Any = None,
        shape: Sequence[Dim] | None = None,
        /,
        *,
        domain: str | None = None,
        **attrs: Any,
    ) -> gs.Variable:
        """Insert a node as ``node`` does; return its output, of this dtype and shape if known."""
        tensor = self.node(op, like, inputs, domain=domain, **attrs).outputs[0]
        tensor.dtype, tensor.shape = dtype, None if shape is None else list(shape)
        return tensor

    def node(
        self,
        op: str,
        like: gs.Node,
        inputs: Sequence[gs.Tensor],
        *,
        outputs: Sequence[gs.Variable] | None = None,
        domain: str | None = None,
        **attrs: Any,
    ) -> gs.Node:
        """Insert a node before ``like``, with its metadata and a name derived from its own.

        ``finish`` puts it into the graph.

        Args:
            op: Its op type.
            like: The node before which it is inserted.
            inputs: Its inputs.
            outputs: Tensors that it produces from now on, instead of their producers; by default
                one without type, with a name derived from the first output of ``like``.
            domain: Its domain; None for a standard op.
            **attrs: Its attributes.
        """
        names = context_of(self.graph).names
        if outputs is None:
            outputs = [gs.Variable(names.claim(f"{like.outputs[0].name}_{op.lower()}"))]
        for tensor in outputs:
            _leave_producer(tensor)
        name = names.claim(f"{like.name}_{op.lower()}")
        node = gs.Node(op, name, attrs, list(inputs), list(outputs), domain)
        node.origin = origin_of(like)
        self._added.setdefault(id(like), []).append(node)
        # The caches stay valid, so that a pass can rewrite what it has just created.
        self._nodes.add(id(node))
        self._local.update(id(tensor) for tensor in outputs)
        return node


def rewrites(
    *ops: str, composites: tuple[str, ...] = ()
) -> Callable[
    [Callable[Concatenate[Edit, gs.Node, Why, _P], int]],
    Callable[Concatenate[gs.Graph, Why, _P], int],
]:
    """Return a decorator that makes a pass of the rewrite of one node.

    The rewrite returns whether it changed the graph, or how many rewrites it made.

    Args:
        *ops: The standard ops that the pass rewrites.
        composites: The composites whose calls it rewrites; all nodes if there are no names at all.
    """

    def decorate(
        one: Callable[Concatenate[Edit, gs.Node, Why, _P], int],
    ) -> Callable[Concatenate[gs.Graph, Why, _P], int]:
        @functools.wraps(one)
        def run(graph: gs.Graph, why: Why, /, *args: _P.args, **kwargs: _P.kwargs) -> int:
            edit, count = Edit(graph), 0
            for node in graph.nodes:
                if (
                    not (ops or composites)
                    or is_standard(node, *ops)
                    or (composites and composite(node, *composites) is not None)
                ):
                    count += one(edit, node, why, *args, **kwargs)
            edit.finish()
            return count

        return run

    return decorate


def set_input(node: gs.Node, index: int, tensor: gs.Tensor) -> None:
    """Make input ``index`` of ``node`` read ``tensor``."""
    old = node.inputs[index]
    # Methods of list: those of graph-surgeon's lists would update the other side by value.
    position = next(i for i, reader in enumerate(old.outputs) if reader is node)
    list.__delitem__(old.outputs, position)
    list.__setitem__(node.inputs, index, tensor)
    list.append(tensor.outputs, node)


def detach(nodes: Sequence[gs.Node]) -> None:
    """Remove nodes from the reader and producer lists of their tensors."""
    dead = {id(node) for node in nodes}
    touched = {id(t): t for node in nodes for t in (*node.inputs, *node.outputs)}
    for tensor in touched.values():
        readers = [node for node in tensor.outputs if id(node) not in dead]
        makers = [node for node in tensor.inputs if id(node) not in dead]
        list.__setitem__(tensor.outputs, slice(None), readers)
        list.__setitem__(tensor.inputs, slice(None), makers)
    for node in nodes:
        list.clear(node.inputs)
        list.clear(node.outputs)


def _move_readers(old: gs.Tensor, new: gs.Tensor) -> None:
    # A node that reads a tensor twice is among its readers twice.
    seen: set[int] = set()
    for node in old.outputs:
        list.append(new.outputs, node)
        if id(node) in seen:
            continue
        seen.add(id(node))
        for index, tensor in enumerate(node.inputs):
            if tensor is old:
                list.__setitem__(node.inputs, index, new)
    list.clear(old.outputs)


def _take_over_producer(new: gs.Variable, old: gs.Variable) -> None:
    """Exchange the producers of ``new`` and ``old``."""
    # An exchange, since the node that loses its output stays in the graph until `finish`.
    (new_maker,), (old_maker,) = list(new.inputs), list(old.inputs)
    new_index = next(i for i, t in enumerate(new_maker.outputs) if t is new)
    old_index = next(i for i, t in enumerate(old_maker.outputs) if t is old)
    list.__setitem__(new_maker.outputs, new_index, old)
    list.__setitem__(old_maker.outputs, old_index, new)
    list.__setitem__(old.inputs, slice(None), [new_maker])
    list.__setitem__(new.inputs, slice(None), [old_maker])


def _leave_producer(tensor: gs.Tensor) -> None:
    for maker in tensor.inputs:
        index = next(i for i, output in enumerate(maker.outputs) if output is tensor)
        list.__delitem__(maker.outputs, index)
    list.clear(tensor.inputs)


def _learn(kept: gs.Tensor, gone: gs.Tensor) -> None:
    """Take over type information from an equal tensor that is removed."""
    if isinstance(kept, gs.AnyConstant):
        return
    if kept.dtype is None and gone.dtype is not None:
        kept.dtype = gone.dtype
    if gone.shape is None:
        return
    if kept.shape is None:
        kept.shape = list(gone.shape)
    elif len(kept.shape) == len(gone.shape):
        # A number says more than a name, and a name more than nothing.
        kept.shape = [
            b if isinstance(b, int) or a is None else a
            for a, b in zip(kept.shape, gone.shape, strict=True)
        ]
