"""The call graph of a model: the calls of each function, and functions sorted by their calls."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.graphs import with_subgraphs

Key = tuple[str, str]
"""Domain and name of a function."""


class CallIndex:
    """Finds the calls of a function without searching the whole model.

    A root graph that changed is indexed again at the next request.
    """

    def __init__(self) -> None:
        self._roots: tuple[int, ...] = ()
        self._calls: dict[Key, dict[int, list[gs.Node]]] = {}
        self._keys: dict[int, list[Key]] = {}
        self._dirty: dict[int, gs.Graph] = {}

    def changed(self, root: gs.Graph) -> None:
        """Record that the nodes of a root graph may have changed."""
        self._dirty[id(root)] = root

    def of(self, key: Key, roots: Sequence[gs.Graph]) -> list[gs.Node]:
        """Return the nodes that call a function, in the order of the roots.

        Args:
            key: The function.
            roots: The main graph and all functions.
        """
        ids = tuple(map(id, roots))
        # Functions were added or removed: an id may belong to another graph by now, so nothing is
        # kept.
        if ids != self._roots:
            self._roots, self._calls, self._keys = ids, {}, {}
            self._dirty = dict(zip(ids, roots, strict=True))
        for root in self._dirty.values():
            self._read(root)
        self._dirty.clear()
        by_root = self._calls.get(key, {})
        if len(by_root) > 1:  # a root that changed was indexed last
            order = {root: position for position, root in enumerate(self._roots)}
            by_root = dict(sorted(by_root.items(), key=lambda item: order[item[0]]))
        return [node for nodes in by_root.values() for node in nodes]

    def _read(self, root: gs.Graph) -> None:
        for key in self._keys.get(id(root), ()):
            self._calls[key].pop(id(root), None)
        keys: dict[Key, None] = {}
        for node in _calls_in(root):
            key = node.domain or "", node.op
            keys[key] = None
            self._calls.setdefault(key, {}).setdefault(id(root), []).append(node)
        self._keys[id(root)] = list(keys)


def sorted_callers_first(functions: Sequence[gs.Function]) -> list[gs.Function]:
    """Return functions, each after its callers; otherwise in their order.

    Functions that call each other recursively, which ONNX forbids, keep their order.
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
        # The heap gives the first free function in their order; without one, there is a recursion.
        index = heapq.heappop(free) if free else next(i for i in left if i not in placed)
        # A function that was placed to end a recursion is freed later as well.
        if index in placed:
            continue
        placed[index] = None
        for one in calls[index]:
            callers[one] -= 1
            if callers[one] == 0:
                heapq.heappush(free, one)
    return [functions[index] for index in placed]


def _calls_in(root: gs.Graph) -> Iterator[gs.Node]:
    """Yield the nodes outside the standard domains, which may be calls."""
    return (node for graph in with_subgraphs(root) for node in graph.nodes if node.domain)
