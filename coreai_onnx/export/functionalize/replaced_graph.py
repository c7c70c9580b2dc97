"""A program with another graph; the given program stays as it is."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
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


def copy_of(module: fx.GraphModule) -> fx.GraphModule:
    """Return a graph module with a copy of its graph, and of the graphs that its nodes call.

    Nodes keep their names, and both modules share the tensors.
    """
    graph = copy.deepcopy(module.graph)
    for original, node in zip(module.graph.nodes, graph.nodes, strict=True):
        # The copy renames nodes called like a builtin (input), to which the signature refers by
        # name.
        node.name = original.name
    copied = fx.GraphModule(module, graph)
    for name, child in module.named_children():
        if isinstance(child, fx.GraphModule):
            setattr(copied, name, copy_of(child))
    return copied


def isolated(program: ExportedProgram) -> ExportedProgram:
    """Return a copy of a program that shares no graph and no tensor with it."""
    root, memo = copy_of(program.graph_module), dict[int, Any]()  # tied weights stay tied
    return ExportedProgram(
        root=root,
        graph=root.graph,
        graph_signature=copy.deepcopy(program.graph_signature),
        state_dict=copy.deepcopy(program.state_dict, memo),
        range_constraints=dict(program.range_constraints),
        module_call_graph=copy.deepcopy(program.module_call_graph),
        example_inputs=copy.deepcopy(program.example_inputs, memo),
        constants=copy.deepcopy(program.constants, memo),
        verifiers=program.verifiers,
    )


def nodes_of(root: fx.GraphModule) -> Iterator[fx.Node]:
    """Yield the nodes of a graph module and of the graphs that its nodes call."""
    for module in root.modules():
        if isinstance(module, fx.GraphModule):
            yield from module.graph.nodes
