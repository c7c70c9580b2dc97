"""Which nodes of a program a backend claims, from its claims on the ONNX nodes they become."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import torch
from torch import fx
from torch.export import ExportedProgram

from coreai_onnx.bodies.modules import ModuleCalls
from coreai_onnx.delegation.capability import tagged
from coreai_onnx.delegation.methods import FORWARD
from coreai_onnx.delegation.partitioning import DelegationSpec, PartitionResult
from coreai_onnx.export.externalize.delegate_call import DELEGATE
from coreai_onnx.lower.nodes.composite_calls import CompositeCalls
from coreai_onnx.lower.walk.context import Context
from coreai_onnx.lower.walk.interface import IONames
from coreai_onnx.lower.walk.program import ProgramLowering
from coreai_onnx.targets.opsets import DEFAULT_OPSET

Claim = Callable[[fx.Node, Sequence[ir.Node]], str]
"""Returns why a backend does not claim an operator, from its ONNX nodes; empty if it does."""


@dataclass(frozen=True)
class LoweredNodes:
    """A lowered program, and where its ONNX nodes come from.

    Attributes:
        model: The model; composites have no functions yet.
        nodes: The ONNX nodes of the main graph, by the name of the node that they were made for.
    """

    model: ir.Model
    nodes: Mapping[str, tuple[ir.Node, ...]]


def lowered_nodes(program: ExportedProgram, *, composites: bool) -> LoweredNodes:
    """Lower a program.

    Args:
        program: The program; it is not changed.
        composites: Whether composites are calls; otherwise they are decomposed.

    Raises:
        UnsupportedOpsError: If ops have no lowering.
        ConversionError: If the program cannot be expressed in ONNX.
    """
    nodes: dict[str, tuple[ir.Node, ...]] = {}
    # The lowering calls ``step`` once after each of these nodes, in this order.
    sources = (n.name for n in program.graph.nodes if n.op not in ("placeholder", "output"))
    seen = 0

    def step() -> None:
        nonlocal seen
        graph = lowering.scope.graph
        # The graph is a linked list: from its end, a step costs only the nodes that it added.
        new = list(itertools.islice(reversed(graph), len(graph) - seen))
        nodes[next(sources)] = tuple(reversed(new))
        seen = len(graph)

    calls = ModuleCalls({})
    context = Context(
        # A provider is asked before the user chooses an opset for the file.
        opset=DEFAULT_OPSET,
        composites=CompositeCalls() if composites else None,
        module_calls=calls,
        step=step,
    )
    lowering = ProgramLowering(program, context, IONames())
    lowered = lowering.run()
    return LoweredNodes(lowered.model([*calls.functions([]), *context.functions], FORWARD), nodes)


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


def _reason(node: fx.Node, lowered: Mapping[str, tuple[ir.Node, ...]], claim: Claim) -> str:
    # It has no ONNX node of its own, and belongs to the operator whose result it takes.
    if node.target is operator.getitem:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        return _reason(source, lowered, claim)
    if node.target is DELEGATE:
        return "it is delegated already"
    value = node.meta.get("val")
    tensors = value if isinstance(value, list | tuple) else [value]
    # The function of a part returns tensors only.
    if not all(isinstance(x, torch.Tensor | None) for x in tensors) or value is None:
        return "its result is not a tensor"
    nodes = lowered.get(node.name, ())
    # An identity or a size: it may join a part, so that it does not cut the part in two.
    return claim(node, nodes) if nodes else ""
