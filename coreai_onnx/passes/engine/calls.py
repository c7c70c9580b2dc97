"""Which nodes call which functions, and in which order functions call each other."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import onnx_graphsurgeon as gs

from coreai_onnx.passes.engine.scope import with_subgraphs

Key = tuple[str, str]
"""Domain and name of a function."""


class CallIndex:
    """Finds the calls of a function without a search of the whole model.

    A root graph that changes is read again when calls are next asked for.
    """

    def __init__(self) -> None:
        """Start with nothing read."""
        self._roots: tuple[int, ...] = ()
        self._calls: dict[Key, dict[int, list[gs.Node]]] = {}
        self._keys: dict[int, list[Key]] = {}
        self._dirty: dict[int, gs.Graph] = {}

    def changed(self, root: gs.Graph) -> None:
        """Take note that the nodes of a root graph may be others than before."""
        self._dirty[id(root)] = root

    def of(self, key: Key, roots: Sequence[gs.Graph]) -> list[gs.Node]:
        """Return the nodes that call a function, in the order of the roots.

        Args:
            key: The function.
            roots: The main graph and all functions.
        """
        ids = tuple(map(id, roots))
        if ids != self._roots:
            self._roots, self._calls, self._keys = ids, {}, {}
            self._dirty = dict(zip(ids, roots, strict=True))
        for root in self._dirty.values():
            self._read(root)
        self._dirty.clear()
        found = self._calls.get(key, {})
        if len(found) > 1:
            order = {one: position for position, one in enumerate(self._roots)}
            found = dict(sorted(found.items(), key=lambda item: order[item[0]]))
        return [node for nodes in found.values() for node in nodes]

    def _read(self, root: gs.Graph) -> None:
        for key in self._keys.get(id(root), ()):
            self._calls[key].pop(id(root), None)
        keys: dict[Key, None] = {}
        for node in _calls_in(root):
            key = node.domain, node.op
            keys[key] = None
            self._calls.setdefault(key, {}).setdefault(id(root), []).append(node)
        self._keys[id(root)] = list(keys)


def sorted_callers_first(functions: Sequence[gs.Function]) -> list[gs.Function]:
    """Return functions, each after those of them that call it; otherwise in their order.

    Functions that call each other in a circle, which ONNX forbids, come in their order.
    """
    number = {(one.domain, one.name): i for i, one in enumerate(functions)}
    calls = [
        {number[key] for node in _calls_in(one) if (key := (node.domain, node.op)) in number}
        for one in functions
    ]
    callers = [0] * len(functions)
    for index in (index for called in calls for index in called):
        callers[index] += 1
    free = [index for index, count in enumerate(callers) if not count]
    left = iter(range(len(functions)))
    placed: dict[int, None] = {}
    while len(placed) < len(functions):
        index = heapq.heappop(free) if free else next(i for i in left if i not in placed)
        if index in placed:
            continue
        placed[index] = None
        for one in calls[index]:
            callers[one] -= 1
            if callers[one] == 0:
                heapq.heappush(free, one)
    return [functions[index] for index in placed]


def _calls_in(root: gs.Graph) -> Iterator[gs.Node]:
    """Yield the nodes that are of no standard domain: those that may be calls."""
    return (node for graph in with_subgraphs(root) for node in graph.nodes if node.domain)
