"""A partitioner that selects the nodes that a backend supports, in parts as large as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import fx
from torch.export import ExportedProgram
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from coreai_onnx.delegation.partitioning import TAG, DelegationSpec, Partitioner, PartitionResult

Capability = Callable[[fx.Node], str]
"""Returns why a backend does not support a node, by its op, dtypes or shapes; empty if it does."""


class CapabilityPartitioner(Partitioner):
    """Tags the nodes that a backend supports, outside of branches and loops.

    Nodes that depend on each other share a part where this makes no cycle.

    Args:
        spec: What processes the parts.
        capability: Why a node is not supported; empty if it is.
    """

    def __init__(self, spec: DelegationSpec, capability: Capability) -> None:
        """Store the arguments."""
        self.spec, self.capability = spec, capability

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the supported nodes; the result has the reasons for the others."""
        calls = [n for n in exported_program.graph.nodes if n.op == "call_function"]
        reasons = {node.name: self.capability(node) for node in calls}
        return tagged(exported_program, self.spec, reasons)


def tagged(
    program: ExportedProgram,
    spec: DelegationSpec,
    reasons: Mapping[str, str],
    worthwhile: Callable[[Iterable[fx.Node]], bool] = any,
) -> PartitionResult:
    """Tag the supported nodes of a program in parts as large as possible.

    Args:
        program: The program; its nodes are tagged.
        spec: What processes the parts.
        reasons: Why a node is not supported, by name; empty if it is.
        worthwhile: Whether nodes are to be a part; others stay in the program.
    """
    proposed = CapabilityBasedPartitioner(
        program.graph_module, _Support(reasons), allows_single_node_partition=True
    ).propose_partitions()
    parts = [list(part.nodes) for part in proposed if worthwhile(list(part.nodes))]
    for number, nodes in enumerate(parts):
        for node in nodes:
            node.meta[TAG] = f"part{number}"
    tags = {f"part{number}": spec for number in range(len(parts))}
    unsupported = {name: reason for name, reason in reasons.items() if reason}
    return PartitionResult(program, tags, unsupported)


class _Support(OperatorSupportBase):
    """The answers of a capability, for torch's partitioner."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = reasons

    def is_node_supported(self, submodules: Mapping[str, Any], node: fx.Node) -> bool:  # noqa: ARG002 - of torch
        """Whether a node may be in a part."""
        return self.reasons.get(node.name) == ""
