"""Near misses: where a pass could have fired, and the reason it did not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import onnx_graphsurgeon as gs


@dataclass
class NearMiss:
    """One reason a pass did not fire, and how often.

    Attributes:
        reason: The reason, the same words for every node it holds for.
        op: Op type of the first node.
        node: Name of the first node.
        count: Number of nodes.
    """

    reason: str
    op: str
    node: str
    count: int = 1


class Why:
    """Collects near misses of one pass over one graph.

    >>> why = Why()
    >>> why("epsilon is not a float", gs.Node("Add", name="norm/add"))
    False
    >>> why.misses[0].node
    'norm/add'
    """

    def __init__(self) -> None:
        """Start with none."""
        self._misses: dict[tuple[str, str], NearMiss] = {}

    def __call__(self, reason: str, node: gs.Node) -> Literal[False]:
        """Record that ``node`` was left alone for ``reason``; return False, for early returns."""
        known = self._misses.get((reason, node.op))
        if known is None:
            name = node.name or next((t.name for t in node.outputs), "")
            self._misses[reason, node.op] = NearMiss(reason, node.op, name)
        else:
            known.count += 1
        return False

    @property
    def misses(self) -> tuple[NearMiss, ...]:
        """The near misses in the order of their first appearance."""
        return tuple(self._misses.values())
