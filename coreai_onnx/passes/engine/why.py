"""Near misses: nodes that a pass nearly matched, and the reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coreai_onnx.passes.engine import graphs as gs


@dataclass
class NearMiss:
    """One reason why a pass did not fire, and how often.

    Attributes:
        reason: The reason, in the same words for every node.
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
        self._misses: dict[tuple[str, str], NearMiss] = {}

    def __call__(self, reason: str, node: gs.Node) -> Literal[False]:
        """Record that ``node`` was not rewritten and why; return False, for early returns."""
        miss = self._misses.get((reason, node.op))
        if miss is None:
            name = node.name or next((t.name for t in node.outputs), "")
            self._misses[reason, node.op] = NearMiss(reason, node.op, name)
        else:
            miss.count += 1
        return False

    @property
    def misses(self) -> tuple[NearMiss, ...]:
        """The near misses in the order of their first appearance."""
        return tuple(self._misses.values())
