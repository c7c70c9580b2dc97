"""A program with another graph; the given program stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature


def with_graph(
    program: ExportedProgram,
    root: fx.GraphModule,
    signature: ExportGraphSignature | None = None,
    states: Mapping[str, Any] | None = None,
) -> ExportedProgram:
    """Return a program with another graph, and maybe another signature and more constants."""
    return ExportedProgram(
        root=root,
        graph=root.graph,
        graph_signature=signature or program.graph_signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants | dict(states or {}),
        verifiers=program.verifiers,
    )
