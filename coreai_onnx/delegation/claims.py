"""Which nodes of a program a backend claims, from its claims on the ONNX nodes they become."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir
import torch
from torch import fx
from torch.export import ExportedProgram

from coreai_onnx.delegation.capability import tagged
from coreai_onnx.delegation.lowered_nodes import LoweredNodes
from coreai_onnx.delegation.partitioning import DelegationSpec, PartitionResult
from coreai_onnx.export.externalize.delegate_call import DELEGATE

Claim = Callable[[fx.Node, Sequence[ir.Node]], str]
"""Returns why a backend does not claim an operator, from its ONNX nodes; empty if it does."""


def claimed(
    program: ExportedProgram, lowered: LoweredNodes, spec: DelegationSpec, claim: Claim
) -> PartitionResult:
    """Tag the operators of a copy of a program whose ONNX nodes a backend claims.

    An operator that becomes no ONNX node connects the operators around it to one part, but does
    not form a part by itself.

    Args:
        program: The program; it is not changed.
        lowered: What it is lowered to.
        spec: What processes the parts.
        claim: Called with each operator that becomes ONNX nodes.
    """
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    reasons = {node.name: _reason(node, lowered.nodes, claim) for node in calls}

    def worthwhile(nodes: Iterable[fx.Node]) -> bool:
        # A part without ONNX nodes would cost a call and save nothing.
        return any(lowered.nodes.get(node.name) for node in nodes)

    return tagged(program, spec, reasons, worthwhile)


def _reason(node: fx.Node, made: Mapping[str, tuple[ir.Node, ...]], claim: Claim) -> str:
    # It has no ONNX node of its own, and belongs to the operator whose result it takes.
    if node.target is operator.getitem:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        return _reason(source, made, claim)
    if node.target is DELEGATE:
        return "it is delegated already"
    value = node.meta.get("val")
    tensors = value if isinstance(value, list | tuple) else [value]
    # The function of a part returns tensors only.
    if not all(isinstance(x, torch.Tensor | None) for x in tensors) or value is None:
        return "its result is not a tensor"
    nodes = made.get(node.name, ())
    # An identity or a size: it may join a part, so that it does not cut the part in two.
    return claim(node, nodes) if nodes else ""
