"""The order of nodes that takes the least memory, as measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial

import onnx_ir as ir

from coreai_onnx.model.inventory import attribute_graphs
from coreai_onnx.runtime.memory.plan import Inputs, MemoryPlan, memory_plan
from coreai_onnx.runtime.sessions.entrypoints import HasModels, OpenProgram
from coreai_onnx.runtime.sessions.settings import SessionSettings
from coreai_onnx.targets.providers import Choice


def reorder(
    program: HasModels,
    inputs: Inputs = None,
    *,
    sizes: Mapping[str, int] | None = None,
    entrypoint: str | None = None,
    kernels: bool | None = None,
    low_memory: bool = False,
    provider: Choice | None = None,
) -> tuple[MemoryPlan, MemoryPlan]:
    """Reorder the nodes of a model if that lowers its peak; what it computes is the same.

    onnxruntime runs the operands of a node in an order that follows the order of the nodes in the
    file.

    Args:
        program: The program; its model is changed.
        inputs: As for `memory_plan`.
        sizes: As for `memory_plan`.
        entrypoint: As for `memory_plan`.
        kernels: As for `memory_plan`.
        low_memory: As for `memory_plan`.
        provider: As for `memory_plan`.

    Returns:
        The plans before and after. They are equal if no better order was found.

    Raises:
        SessionError: As `memory_plan`; the model is as it was.
        InputError: As `memory_plan`.
    """
    opened = OpenProgram(program, SessionSettings())
    name = opened.main if entrypoint is None else entrypoint
    run = partial(
        memory_plan,
        program,
        inputs,
        sizes=sizes,
        entrypoint=name,
        kernels=kernels,
        low_memory=low_memory,
        provider=provider,
    )
    before = run()
    graph = opened.model_of(name).graph
    present = list(graph)
    better = smaller_first(graph, before.results)
    try:
        apply_order(graph, better)
        after = run()
    except BaseException:
        apply_order(graph, present)
        raise
    # The order is a greedy one, and onnxruntime has an order of its own and shares buffers: only
    # the recorded run tells whether the peak is lower.
    if after.peak < before.peak:
        return before, after
    apply_order(graph, present)
    return before, before


def smaller_first(graph: ir.Graph, sizes: Mapping[str, int]) -> list[ir.Node]:
    """Return the nodes in an order that releases memory as soon as possible.

    Of the nodes whose inputs are computed, the next is the one that adds the fewest bytes: those of
    its results, less those of the values that it is the last to read. Ties keep the present order.

    Args:
        graph: The graph, in topological order.
        sizes: Bytes of values by name; others count nothing.
    """
    return _Schedule(graph, sizes).nodes


def apply_order(graph: ir.Graph, nodes: list[ir.Node]) -> None:
    """Put the nodes of a graph into another topological order."""
    graph.remove(nodes)
    graph.extend(nodes)


class _Schedule:
    def __init__(self, graph: ir.Graph, sizes: Mapping[str, int]) -> None:
        self.nodes: list[ir.Node] = []
        self._sizes, self._kept = sizes, {id(value) for value in graph.outputs}
        self._position = {node: index for index, node in enumerate(graph)}
        self._reads = {node: Counter(map(id, _values_read(node))) for node in graph}
        self._readers: Counter[int] = Counter()
        for reads in self._reads.values():
            self._readers += reads
        self._names = {id(v): v.name or "" for node in graph for v in _values_read(node)}
        self._made = {id(value) for node in graph for value in node.outputs}
        self._run({node: self._makers(node) for node in graph})

    def _makers(self, node: ir.Node) -> set[ir.Node]:
        producers = (value.producer() for value in _values_read(node))
        return {maker for maker in producers if maker in self._position}

    def _run(self, waits: dict[ir.Node, set[ir.Node]]) -> None:
        users: dict[ir.Node, list[ir.Node]] = {node: [] for node in waits}
        for node, makers in waits.items():
            for maker in makers:
                users[maker].append(node)
        ready = [node for node, makers in waits.items() if not makers]
        while ready:
            # A search instead of a heap: each scheduled node changes what the others would add, so
            # that the keys of a heap would be out of date.
            node = min(ready, key=lambda n: (self._added(n), self._position[n]))
            ready.remove(node)
            self.nodes.append(node)
            self._readers -= self._reads[node]
            for user in users[node]:
                waits[user].discard(node)
                if not waits[user]:
                    ready.append(user)

    def _added(self, node: ir.Node) -> int:
        added = sum(self._sizes.get(value.name or "", 0) for value in node.outputs)
        return added - sum(
            self._sizes.get(self._names[value], 0)
            for value, count in self._reads[node].items()
            if value in self._made and value not in self._kept and self._readers[value] == count
        )


def _values_read(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the inputs of a node and those of the nodes in its subgraphs."""
    yield from (value for value in node.inputs if value is not None)
    for attribute in node.attributes.values():
        for graph in attribute_graphs(attribute):
            for inner in graph:
                yield from _values_read(inner)
            yield from graph.outputs
