"""Which nodes are wrong, from the regions that are wrong and those that are right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from coreai_onnx.debugging.reference.regions import Region
from coreai_onnx.errors import Where
from coreai_onnx.model.inventory import op_name
from coreai_onnx.model.provenance.debug_info import lines_by_handle
from coreai_onnx.model.provenance.places import label_of, where_of


@dataclass(frozen=True)
class LocatedNode:
    """A node, and where it comes from.

    Attributes:
        name: Name of the node.
        op: ``Add`` or ``ai.coreai::rms_norm``.
        where: Module, class, source line and its text, as far as the model has them.
        handles: Debug handles of the operators of a delegated part, with their lines: a backend may
            report an error by these numbers.
    """

    name: str
    op: str
    where: Where
    handles: tuple[tuple[int, str], ...] = ()

    @classmethod
    def of(cls, node: ir.Node, code: Mapping[str, str]) -> LocatedNode:
        """Return a node with its place; ``code`` is the text of source lines."""
        name, op = label_of(node), op_name(node.domain, node.op_type)
        return cls(name, op, where_of(node, code), tuple(lines_by_handle(node).items()))


@dataclass(frozen=True)
class Cause:
    """Wrong regions that have the same cause.

    Attributes:
        regions: The regions in graph order.
        nodes: Positions of the nodes that may be wrong.
    """

    regions: tuple[Region, ...]
    nodes: tuple[int, ...]


def causes_of(wrong: Sequence[Region], right: Iterable[Region]) -> list[Cause]:
    """Return the wrong regions by cause, in graph order.

    A node is right if right regions use all of its results: a Split of which only two outputs are
    exchanged still computes the third, and may be what is wrong in the regions that read those two.
    Wrong regions that share a node have one cause, which is in the nodes that all of them share.
    """
    right_results = {result for region in right for result in region.results}
    causes: list[Cause] = []
    for region in wrong:
        # If all nodes of a wrong region are in right ones, each of them may be wrong.
        nodes = frozenset(n for n, _ in region.results - right_results) or frozenset(region.nodes)
        regions: tuple[Region, ...] = (region,)
        others = []
        for cause in causes:
            if shared := nodes.intersection(cause.nodes):
                regions, nodes = cause.regions + regions, shared
            else:
                others.append(cause)
        causes = [*others, Cause(regions, tuple(sorted(nodes)))]
    return sorted(causes, key=lambda cause: cause.nodes)
