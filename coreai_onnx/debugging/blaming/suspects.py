"""Which nodes are guilty, from the regions that are wrong and those that are right."""

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
class Suspect:
    """A node that may be wrong.

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
    def of(cls, node: ir.Node, code: Mapping[str, str]) -> Suspect:
        """Return a node as a suspect.

        Args:
            node: The node.
            code: The text of source lines.
        """
        name, op = label_of(node), op_name(node.domain, node.op_type)
        return cls(name, op, where_of(node, code), tuple(lines_by_handle(node).items()))


@dataclass(frozen=True)
class Group:
    """Wrong regions that have the same cause.

    Attributes:
        regions: The regions in graph order.
        nodes: Positions of the guilty nodes.
    """

    regions: tuple[Region, ...]
    nodes: tuple[int, ...]


def groups(wrong: Sequence[Region], right: Iterable[Region]) -> list[Group]:
    """Return the wrong regions by cause, in graph order.

    A node whose results all serve right regions is cleared: a Split of which only two outputs are
    exchanged still computes the third, and stays a suspect of the regions that read those two.
    Wrong regions that share a node have one cause, which is in the nodes that all of them share.
    """
    right_results = {result for region in right for result in region.results}
    suspects = [
        # If right regions clear every node of a wrong one, each of them remains a suspect.
        frozenset(node for node, _ in region.results - right_results) or frozenset(region.nodes)
        for region in wrong
    ]
    made: list[tuple[list[Region], frozenset[int]]] = []
    for region, nodes in zip(wrong, suspects, strict=True):
        regions, shared, others = [region], nodes, []
        for other in made:
            if other[1] & shared:
                regions, shared = other[0] + regions, other[1] & shared
            else:
                others.append(other)
        made = [*others, (regions, shared)]
    found = [Group(tuple(regions), tuple(sorted(nodes))) for regions, nodes in made]
    return sorted(found, key=lambda group: group.nodes)
