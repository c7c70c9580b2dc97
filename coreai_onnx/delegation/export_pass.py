"""Passes over the graph of an exported program, written as the replacement of its operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate
from torch.fx.passes.infra.pass_base import PassResult

from coreai_onnx.export.compat.torch_names import FakeTensor, OpOverload, pytree

edge_ops = SimpleNamespace(edge=torch.ops)
"""The operators of the edge dialect, ``edge_ops.edge.aten.relu.default``: torch's own."""


@dataclass(frozen=True, eq=False)
class ProxyValue:
    """A value of the program while a pass rewrites it.

    Attributes:
        data: The fake tensor or number that stands for the value: its dtype and shape.
        node: The node that computes it.
    """

    data: Any
    node: fx.Node

    def to_tensor(self) -> torch.Tensor:
        """Return the fake tensor.

        Raises:
            TypeError: If the value is not a tensor.
        """
        if not isinstance(self.data, torch.Tensor):
            raise TypeError(f"{self.node.name} is a {type(self.data).__name__}, not a tensor")
        return self.data


class ExportPass:
    """Rebuilds a graph; subclasses replace operators.

    ```python
    class ReluToSigmoid(ExportPass):
        def call_operator(self, op, args, kwargs, meta):
            if op == torch.ops.aten.relu.default:
                op = torch.ops.aten.sigmoid.default
            return super().call_operator(op, args, kwargs, meta)
    ```

    The given graph is not changed. Graphs inside it, such as the branches of ``torch.cond``, are
    rebuilt too.
    """

    def __init__(self) -> None:
        """Start outside of a graph."""
        self._graph = fx.Graph()
        self._source: fx.Node | None = None

    def __call__(self, graph_module: fx.GraphModule) -> PassResult:
        """Return the rebuilt graph module."""
        return self.call(graph_module)

    def call(self, graph_module: fx.GraphModule) -> PassResult:
        """Return the rebuilt graph module, in a ``PassResult``."""
        outer, self._graph = self._graph, fx.Graph()
        known: dict[fx.Node, ProxyValue] = {}
        try:
            for node in graph_module.graph.nodes:
                known[node] = self._rebuilt(node, known)
            made = fx.GraphModule(graph_module, self._graph)
        finally:
            self._graph, self._source = outer, None
        for name, child in graph_module.named_children():
            if isinstance(child, fx.GraphModule):
                setattr(made, name, self.call(child).graph_module)
        return PassResult(made, modified=True)

    def call_operator(
        self,
        op: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        meta: Mapping[str, Any],
    ) -> ProxyValue:
        """Add a call of an operator to the new graph.

        Args:
            op: The operator, an overload of ``torch.ops``.
            args: Its arguments; values of the program are instances of `ProxyValue`.
            kwargs: Its keyword arguments.
            meta: What to keep about its origin: stack trace and modules.
        """
        placed: Any = map_aggregate(args, _node_of)
        named: Any = map_aggregate(dict(kwargs), _node_of)
        source = self._source
        same = source is not None and source.target is op
        kept_name = source.name if source and same else None
        node = self._graph.create_node("call_function", op, placed, named, kept_name)
        node.meta = dict(meta)
        if not (same and source is not None and _same_data(source, node)):
            node.meta["val"] = inferred(op, placed, named, like=meta.get("val"))
        return ProxyValue(node.meta["val"], node)

    def _rebuilt(self, node: fx.Node, known: Mapping[fx.Node, ProxyValue]) -> ProxyValue:
        if node.op == "call_function" and isinstance(node.target, OpOverload):
            self._source = node
            args, kwargs = pytree.tree_map_only(
                fx.Node, lambda n: known[n], (tuple(node.args), dict(node.kwargs))
            )
            return self.call_operator(node.target, args, kwargs, node.meta)
        made = self._graph.node_copy(node, lambda n: known[n].node)
        if node.op == "placeholder":
            made.name = node.name  # torch would rename ``input``
        return ProxyValue(made.meta.get("val"), made)


def inferred(op: Callable[..., Any], args: Any, kwargs: Any, like: Any = None) -> Any:
    """Return the fake result of an operator for arguments with nodes.

    Args:
        op: The operator.
        args: Its arguments.
        kwargs: Its keyword arguments.
        like: A value that provides the fake mode if no argument is a tensor.
    """
    filled = fx.map_arg((args, kwargs), lambda n: n.meta["val"])
    leaves = pytree.tree_leaves((filled, like))
    mode = next((x.fake_mode for x in leaves if isinstance(x, FakeTensor)), nullcontext())
    with torch.no_grad(), mode:
        given_args, given_kwargs = filled
        return op(*given_args, **given_kwargs)


def _node_of(x: Any) -> Any:
    return x.node if isinstance(x, ProxyValue) else x


def _same_data(source: fx.Node, node: fx.Node) -> bool:
    """Whether a copied call has the arguments of its source, so that it has its type."""
    old = pytree.tree_leaves((tuple(source.args), dict(source.kwargs)))
    new = pytree.tree_leaves((tuple(node.args), dict(node.kwargs)))
    return len(old) == len(new) and all(_same(a, b) for a, b in zip(old, new, strict=True))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, fx.Node) and isinstance(b, fx.Node):
        return a.meta.get("val") is b.meta.get("val")
    return type(a) is type(b) and bool(a == b)
