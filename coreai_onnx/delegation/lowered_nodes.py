"""The ONNX nodes that each node of an exported program is lowered to, without functions."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir
from torch.export import ExportedProgram

from coreai_onnx.bodies.modules import ModuleCalls
from coreai_onnx.delegation.methods import FORWARD
from coreai_onnx.lower.nodes.composite_calls import CompositeCalls
from coreai_onnx.lower.walk.context import Context
from coreai_onnx.lower.walk.interface import IONames
from coreai_onnx.lower.walk.program import ProgramLowering
from coreai_onnx.targets.opsets import DEFAULT_OPSET


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
    made: dict[str, tuple[ir.Node, ...]] = {}
    # The lowering calls ``step`` once after each of these nodes, in this order.
    sources = (n.name for n in program.graph.nodes if n.op not in ("placeholder", "output"))
    seen = 0

    def step() -> None:
        nonlocal seen
        graph = lowering.scope.graph
        # The graph is a linked list: from its end, a step costs only the nodes that it added.
        new = list(itertools.islice(reversed(graph), len(graph) - seen))
        made[next(sources)] = tuple(reversed(new))
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
    return LoweredNodes(lowered.model([*calls.functions([]), *context.functions], FORWARD), made)
