"""Checks of a graph after every pass, so that an error names the pass that broke it.

The check also sorts nodes topologically, since a pass may insert nodes anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from coreai_onnx.model.inventory import CONTRIB_DOMAIN
from coreai_onnx.model.standard.op_schemas import schema_of
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.graphs import (
    attribute_graphs,
    origin_of,
    reads_in,
    reads_of,
    with_subgraphs,
)
from coreai_onnx.passes.engine.match import STANDARD_DOMAINS
from coreai_onnx.targets.releases import Release, since, text_of


class BrokenGraphError(Exception):
    """The graph breaks a rule of ONNX; the message names the rule and the node."""


def check(root: gs.Graph, interface: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    """Check a root graph with its subgraphs, and sort its nodes if they are out of order.

    Args:
        root: The main graph or a function body.
        interface: The expected names of its inputs and outputs.

    Raises:
        BrokenGraphError: Two tensors with one name, a tensor that is read but not produced, a
            cycle, a tensor with two producers, or inputs or outputs that differ from ``interface``.
    """
    if interface_of(root) != interface:
        raise BrokenGraphError(f"inputs and outputs were {interface}, now {interface_of(root)}")
    _check_names(root)
    _check_graph(root, set())


def too_new(root: gs.Graph, opset: int, oldest: Release | None = None) -> str:
    """Return a node that passes created and a runtime may not have; empty if there is none.

    Args:
        root: The main graph or a function body.
        opset: Its ``ai.onnx`` opset.
        oldest: The oldest onnxruntime that must run the model; None for any.
    """
    for graph in with_subgraphs(root):
        for node in graph.nodes:
            # Nodes of the file are not judged: whoever wrote them chose the opset and the runtime.
            if not _is_new(node):
                continue
            if oldest is not None and node.domain in ("", CONTRIB_DOMAIN):
                dtypes = [
                    ir.DataType.from_numpy(np.dtype(tensor.dtype)).name.lower()
                    for tensor in node.inputs
                    if tensor.dtype is not None
                ]
                first = since(node.domain, node.op, node.attrs, len(node.inputs), dtypes)
                if first > oldest:
                    return f"{node.op} of onnxruntime {text_of(first)}"
            if node.domain not in STANDARD_DOMAINS:
                continue
            schema = schema_of(node.op, opset)
            fits = schema is not None and schema.min_input <= len(node.inputs) <= schema.max_input
            if schema is None or not fits or not node.attrs.keys() <= schema.attributes.keys():
                return f"{node.op} with {len(node.inputs)} inputs"
    return ""


def _is_new(node: gs.Node) -> bool:
    source = origin_of(node)
    return source is None or (source.op_type, len(source.inputs)) != (node.op, len(node.inputs))


def interface_of(graph: gs.Graph) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a graph's inputs and outputs."""
    return tuple(t.name for t in graph.inputs), tuple(t.name for t in graph.outputs)


def _check_names(root: gs.Graph) -> None:
    by_name: dict[str, gs.Tensor] = {}
    for graph in with_subgraphs(root):
        for tensor in _tensors(graph):
            if tensor.name and by_name.setdefault(tensor.name, tensor) is not tensor:
                raise BrokenGraphError(f"two tensors are named {tensor.name!r}")


def _tensors(graph: gs.Graph) -> Iterable[gs.Tensor]:
    yield from graph.inputs
    for node in graph.nodes:
        yield from node.inputs
        yield from node.outputs
    yield from graph.outputs


def _check_graph(graph: gs.Graph, outer: set[int]) -> None:
    """Check one graph; ``outer`` holds the tensors that are visible from outer graphs."""
    makers: dict[int, gs.Node] = {}
    for node in graph.nodes:
        for tensor in node.outputs:
            if tensor.is_empty():
                continue
            if isinstance(tensor, gs.AnyConstant):
                raise BrokenGraphError(f"constant {tensor.name!r} has a producer")
            if makers.setdefault(id(tensor), node) is not node:
                raise BrokenGraphError(f"{tensor.name!r} is produced by two nodes")
    visible = outer | {id(tensor) for tensor in graph.inputs}
    for tensor in graph.inputs:
        if id(tensor) in makers:
            raise BrokenGraphError(f"graph input {tensor.name!r} is produced by a node")
    _check_reads(graph, visible, makers)
    produced = visible | makers.keys()
    for output in graph.outputs:
        if not isinstance(output, gs.AnyConstant) and id(output) not in produced:
            raise BrokenGraphError(f"graph output {output.name!r} is produced by nothing")


def _check_reads(graph: gs.Graph, visible: set[int], makers: dict[int, gs.Node]) -> None:
    """Check the reads of all nodes in order; sort the nodes if one reads a later result."""
    ready = set(visible)
    in_order = True
    for node in graph.nodes:
        for tensor in node.inputs:
            if id(tensor) in ready or isinstance(tensor, gs.AnyConstant) or tensor.is_empty():
                continue
            if id(tensor) not in makers:
                raise BrokenGraphError(
                    f"{node.op} node {node.name!r} reads {tensor.name!r}, which nothing produces"
                )
            in_order = False
        inner = attribute_graphs(node)
        if inner:
            in_order = in_order and all(
                id(t) in ready or id(t) not in makers for g in inner for t in reads_in(g)
            )
            for subgraph in inner:
                # All results of the outer graph are visible: whether they come in time is checked
                # by `in_order`.
                _check_graph(subgraph, visible | makers.keys())
        ready.update(id(tensor) for tensor in node.outputs)
    if not in_order:
        graph.nodes = _sorted_nodes(graph, makers)


def _sorted_nodes(graph: gs.Graph, makers: dict[int, gs.Node]) -> list[gs.Node]:
    """Sort topologically and stably: a node moves only if it must precede its readers."""
    ordered: list[gs.Node] = []
    state: dict[int, bool] = {}  # absent: not visited, False: in progress, True: done
    for root in graph.nodes:
        # No recursion: a chain of 900 nodes exceeds Python's limit.
        stack = [] if id(root) in state else [root]
        while stack:
            node = stack[-1]
            if id(node) in state:
                stack.pop()
                if not state[id(node)]:
                    state[id(node)] = True
                    ordered.append(node)
                continue
            state[id(node)] = False
            # Reversed, since the stack is emptied from its end: producers keep the order of the
            # inputs.
            for tensor in reversed(list(reads_of(node))):
                maker = makers.get(id(tensor))
                if maker is None or state.get(id(maker)):
                    continue
                if id(maker) in state:
                    raise BrokenGraphError(f"cycle through {maker.op} node {maker.name!r}")
                stack.append(maker)
    return ordered
