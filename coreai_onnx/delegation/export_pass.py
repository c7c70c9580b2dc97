"""Passes over the graph of an exported program, written as the replacement of its operators."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate
from torch.fx.passes.infra.pass_base import PassResult

from coreai_onnx.export.compat.torch_names import (
    FakeTensor,
    HigherOrderOperator,
    OpOverload,
    pytree,
)

# ExecuTorch has copies of the operators with checked dtypes; one set is enough here.
edge_ops = SimpleNamespace(edge=torch.ops)
"""The operators of the edge dialect, ``edge_ops.edge.aten.relu.default``: torch's own."""
Meta = Mapping[str, Any]
_higher_order = torch.ops.higher_order
_HOOKS = {
    "cond": "call_cond",
    "while_loop": "call_while",
    "map_impl": "call_map",
    "scan": "call_scan",
}
"""Methods of passes that are called for operators that take graphs."""


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
    rebuilt too. Every kind of node has a method: `call_operator`, `call_sym`, `call_getitem`,
    `call_cond`, `call_while`, `call_map`, `call_scan`, `placeholder`, `output` and `on_attr`.
    """

    def __init__(self) -> None:
        """Start outside of a graph."""
        self._graph = fx.Graph()
        self._source: fx.Node | None = None
        self._children: dict[str, fx.GraphModule] = {}
        self._names: dict[fx.GraphModule, str] = {}

    def __call__(self, graph_module: fx.GraphModule) -> PassResult:
        """Return the rebuilt graph module."""
        return self.call(graph_module)

    def call(self, graph_module: fx.GraphModule) -> PassResult:
        """Return the rebuilt graph module, in a ``PassResult``."""
        # A pass calls itself for branches and bodies: the outer graph waits meanwhile.
        outer = self._graph, self._source, self._children, self._names
        self._graph, self._children, self._names = fx.Graph(), {}, {}
        values: dict[fx.Node, Any] = {}
        try:
            for node in graph_module.graph.nodes:
                self._source = node
                values[node] = self._rebuilt(graph_module, node, values)
            # The new module owns what its graph reads: a branch that the pass removed stays behind.
            targets = {str(n.target) for n in self._graph.nodes if n.op == "get_attr"}
            children = {
                name: self._children.get(name) or _at(graph_module, name) for name in targets
            }
            rebuilt = fx.GraphModule(children, self._graph)
            rebuilt.meta.update(graph_module.meta)
        finally:
            self._graph, self._source, self._children, self._names = outer
        return PassResult(rebuilt, modified=True)

    def call_submodule(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> PassResult:  # noqa: ARG002 - for passes that need them
        """Return a rebuilt branch or loop body, in a ``PassResult``."""
        return self.call(graph_module)

    def placeholder(self, name: str, arg: Any, meta: Meta) -> ProxyValue:
        """Add an input to the new graph.

        Args:
            name: Its name.
            arg: The fake tensor or number that stands for it.
            meta: What to keep about its origin.
        """
        node = self._graph.placeholder(name)
        if self._source is not None and self._source.target == name:
            node.name = self._source.name  # torch would rename ``input``
        node.meta = {**meta, "val": arg}
        return ProxyValue(arg, node)

    def output(self, results: Any, meta: Meta) -> ProxyValue:
        """Add the outputs to the new graph.

        Args:
            results: The outputs, instances of `ProxyValue` or constants.
            meta: What to keep about their origin.
        """
        node = self._graph.output(map_aggregate(results, _node_of))
        node.meta = dict(meta)
        return ProxyValue(map_aggregate(results, _data_of), node)

    def on_attr(self, attr: ProxyValue) -> None:
        """Look at a tensor that the graph reads as an attribute."""

    def call_operator(
        self,
        op: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        meta: Meta,
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
        # Signatures, tags and messages refer to nodes by name.
        kept_name = source.name if source and same else None
        node = self._graph.create_node("call_function", op, placed, named, kept_name)
        node.meta = dict(meta)
        # A copied call has the type of its source: there is nothing to infer.
        if not (same and source is not None and _same_data(source, node)):
            node.meta["val"] = inferred(op, placed, named, like=meta.get("val"))
        return ProxyValue(node.meta.get("val"), node)

    def call_sym(self, target: Callable[..., Any], args: tuple[Any, ...], meta: Meta) -> ProxyValue:
        """Add arithmetic on sizes to the new graph, such as ``operator.mul``."""
        return self._call(target, args, meta)

    def call_getitem(self, value: ProxyValue, key: int, meta: Meta) -> ProxyValue:
        """Add one of several results of an operator to the new graph."""
        return self._call(operator.getitem, (value, key), meta)

    def call_cond(
        self,
        pred: ProxyValue,
        true_fn: fx.GraphModule,
        false_fn: fx.GraphModule,
        inputs: Sequence[Any],
        meta: Meta,
    ) -> ProxyValue:
        """Add ``torch.cond`` to the new graph; the given branches are rebuilt."""
        return self._call_graphs(_higher_order.cond, (pred, true_fn, false_fn, inputs), meta)

    def call_while(
        self,
        cond_fn: fx.GraphModule,
        body_fn: fx.GraphModule,
        carried_inputs: Sequence[Any],
        additional_inputs: Sequence[Any],
        meta: Meta,
    ) -> ProxyValue:
        """Add a ``while_loop`` to the new graph; the given condition and body are rebuilt."""
        arguments = cond_fn, body_fn, carried_inputs, additional_inputs
        return self._call_graphs(_higher_order.while_loop, arguments, meta)

    def call_map(
        self,
        f: fx.GraphModule,
        mapped_args: Sequence[Any],
        operands: Sequence[Any],
        meta: Meta,
    ) -> ProxyValue:
        """Add a ``map`` to the new graph; the given body is rebuilt."""
        return self._call_graphs(_higher_order.map_impl, (f, mapped_args, operands), meta)

    def call_scan(
        self,
        combine_fn: fx.GraphModule,
        init: Sequence[Any],
        xs: Sequence[Any],
        additional_inputs: Sequence[Any],
        meta: Meta,
    ) -> ProxyValue:
        """Add a ``scan`` to the new graph; the given body is rebuilt."""
        return self._call_graphs(
            _higher_order.scan, (combine_fn, init, xs, additional_inputs), meta
        )

    def _rebuilt(self, module: fx.GraphModule, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
        if node.op == "get_attr":
            return self._attribute(module, node)
        arguments: Any = fx.map_arg((tuple(node.args), dict(node.kwargs)), lambda n: values[n])
        args, kwargs = arguments
        target: Any = node.target
        if node.op == "placeholder":
            return self.placeholder(str(target), node.meta.get("val"), node.meta)
        if node.op == "output":
            return self.output(args[0], node.meta)
        if isinstance(target, OpOverload):
            return self.call_operator(target, args, kwargs, node.meta)
        if target is operator.getitem:
            return self.call_getitem(args[0], args[1], node.meta)
        if not isinstance(target, HigherOrderOperator):
            return self.call_sym(target, args, node.meta)
        # Other operators with graphs have no hook, as in ExecuTorch, but their graphs are rebuilt
        # too.
        hook = getattr(self, _HOOKS.get(target.name(), ""), None)
        if hook is not None and not kwargs:
            return hook(*args, node.meta)
        return self._call_graphs(target, args, node.meta, kwargs)

    def _attribute(self, module: fx.GraphModule, node: fx.Node) -> Any:
        """Return a graph that the node reads, or the value of a tensor."""
        value = _at(module, str(node.target))
        if isinstance(value, fx.GraphModule):
            # A graph is rebuilt when its caller is; until then only its name is needed.
            self._names[value] = str(node.target)
            return value
        proxy = ProxyValue(node.meta.get("val", value), self._graph.node_copy(node))
        self.on_attr(proxy)
        return proxy

    def _call(self, target: Callable[..., Any], args: tuple[Any, ...], meta: Meta) -> ProxyValue:
        # Not ``self.call_operator``: overrides of it expect operators, not arithmetic on sizes.
        return ExportPass.call_operator(self, target, args, {}, meta)

    def _call_graphs(
        self,
        target: Any,
        args: tuple[Any, ...],
        meta: Meta,
        kwargs: Mapping[str, Any] | None = None,
    ) -> ProxyValue:
        """Add a call of an operator that takes graphs, which are rebuilt."""
        placed: Any = map_aggregate(args, lambda x: self._placed(x, args))
        named: Any = map_aggregate(dict(kwargs or {}), lambda x: self._placed(x, args))
        source = self._source
        kept_name = source.name if source is not None and source.target is target else None
        node = self._graph.create_node("call_function", target, placed, named, kept_name)
        node.meta = dict(meta)
        return ProxyValue(node.meta.get("val"), node)

    def _placed(self, x: Any, args: Sequence[Any]) -> Any:
        if not isinstance(x, fx.GraphModule):
            return _node_of(x)
        name = self._names.get(x, f"submodule_{len(self._children)}")
        self._children[name] = self.call_submodule(x, args).graph_module
        return self._graph.get_attr(name)


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
    # Without the mode of its arguments, an operator without tensors, such as ``full``, would
    # compute real values.
    mode = next((x.fake_mode for x in leaves if isinstance(x, FakeTensor)), nullcontext())
    # Parameters require gradients, and fake results would then carry a graph of autograd.
    with torch.no_grad(), mode:
        given_args, given_kwargs = filled
        return op(*given_args, **given_kwargs)


def _at(module: fx.GraphModule, path: str) -> Any:
    return operator.attrgetter(path)(module)


def _node_of(x: Any) -> Any:
    return x.node if isinstance(x, ProxyValue) else x


def _data_of(x: Any) -> Any:
    return x.data if isinstance(x, ProxyValue) else x


def _same_data(source: fx.Node, node: fx.Node) -> bool:
    """Whether a copied call has the arguments of its source, so that it has its type."""
    old = pytree.tree_leaves((tuple(source.args), dict(source.kwargs)))
    new = pytree.tree_leaves((tuple(node.args), dict(node.kwargs)))
    return len(old) == len(new) and all(_same(a, b) for a, b in zip(old, new, strict=True))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, fx.Node) and isinstance(b, fx.Node):
        # Identity: comparing symbolic sizes would add guards to the program.
        return a.meta.get("val") is b.meta.get("val")
    # The type too, because 1 == True == 1.0.
    return type(a) is type(b) and bool(a == b)
