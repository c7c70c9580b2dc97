"""A partitioner that selects the nodes that a backend supports, in parts as large as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import fx
from torch.export import ExportedProgram
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from coreai_onnx.delegation.partitioning import (
    TAG,
    DelegationSpec,
    Partitioner,
    PartitionResult,
    unfit_nodes,
)
from coreai_onnx.errors import DelegationError
from coreai_onnx.export.functionalize.replaced_graph import copy_of, with_graph

Capability = Callable[[fx.Node], str]
"""Returns why a backend does not support a node, by its op, dtypes or shapes; empty if it does."""


class CapabilityPartitioner(Partitioner):
    """Tags the nodes that a backend supports, outside of branches and loops.

    Nodes that depend on each other share a part where this makes no cycle. A size is computed in a
    part if nothing outside of the part reads it.

    Args:
        spec: What processes the parts.
        capability: Why a node is not supported; empty if it is.
    """

    def __init__(self, spec: DelegationSpec, capability: Capability) -> None:
        """Check and store the arguments.

        Raises:
            DelegationError: If they are of other types.
        """
        if not isinstance(spec, DelegationSpec) or not callable(capability):
            raise DelegationError(
                f"CapabilityPartitioner takes a DelegationSpec and a function, got {spec!r:.40} "
                f"and {capability!r:.40}\n  the function returns why a node is not supported"
            )
        self.spec, self.capability = spec, capability

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Return a copy with tagged nodes, and the reasons for the others.

        Raises:
            DelegationError: If the capability does not return a string.
        """
        calls = [n for n in exported_program.graph.nodes if n.op == "call_function"]
        reasons = {node.name: self.capability(node) for node in calls}
        for name, reason in reasons.items():
            if not isinstance(reason, str):
                raise DelegationError(
                    f"the capability must return a string, got {reason!r:.40} for {name}\n"
                    "  return why the node is not supported, or '' if it is"
                )
        return tagged(exported_program, self.spec, reasons)


def tagged(
    program: ExportedProgram,
    spec: DelegationSpec,
    reasons: Mapping[str, str],
    worthwhile: Callable[[Iterable[fx.Node]], bool] = any,
) -> PartitionResult:
    """Tag the supported nodes of a copy of a program, in parts as large as possible.

    Args:
        program: The program; it is not changed.
        spec: What processes the parts.
        reasons: Why a node is not supported, by name; empty if it is.
        worthwhile: Whether nodes are to be a part; others stay in the program.
    """
    # Tags are written to a copy: a partitioner may be asked for its reasons only.
    copy = with_graph(program, copy_of(program.graph_module))
    reasons = dict(reasons)
    parts = _parts(copy, reasons)
    # Without such nodes, other parts may form, with other results: again until all of them fit.
    while unfit := [node.name for nodes in parts for node in unfit_nodes(nodes)]:
        reasons |= dict.fromkeys(unfit, "its result is not a tensor")
        parts = _parts(copy, reasons)
    chosen = [nodes for nodes in parts if worthwhile(nodes)]
    for number, nodes in enumerate(chosen):
        for node in nodes:
            node.meta[TAG] = f"part{number}"
    tags = {f"part{number}": spec for number in range(len(chosen))}
    unsupported = {name: reason for name, reason in reasons.items() if reason}
    return PartitionResult(copy, tags, unsupported)


def _parts(program: ExportedProgram, reasons: Mapping[str, str]) -> list[list[fx.Node]]:
    # torch's partitioner merges nodes only where no path leaves a part and comes back.
    proposed = CapabilityBasedPartitioner(
        program.graph_module, _Support(reasons), allows_single_node_partition=True
    ).propose_partitions()
    return [list(part.nodes) for part in proposed]


class _Support(OperatorSupportBase):
    """The answers of a capability, for torch's partitioner."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = reasons

    def is_node_supported(self, submodules: Mapping[str, Any], node: fx.Node) -> bool:  # noqa: ARG002 - of torch
        """Whether a node may be in a part."""
        # Placeholders and outputs have no reason, and are not supported either.
        return self.reasons.get(node.name) == ""
