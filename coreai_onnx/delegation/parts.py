"""Parts of an exported program, as programs of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram, ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)

from coreai_onnx.export.compat.torch_names import pytree

_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@dataclass(frozen=True)
class Part:
    """A part of a program.

    Attributes:
        program: The part as a program; its inputs have the names of those of the part.
        inputs: The nodes outside of the part that it reads: weights first.
        outputs: The nodes of the part that are read outside of it.
    """

    program: ExportedProgram
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]


def part_of(program: ExportedProgram, module: fx.GraphModule, nodes: Sequence[fx.Node]) -> Part:
    """Return the part of a program that some of its nodes are; the program is not changed.

    Args:
        program: The program.
        module: The graph module of the nodes: the program's own, or one that its nodes call.
        nodes: The nodes, in order.
    """
    weights: Mapping[str, InputSpec] = {}
    # Graphs inside of a program get weights as plain inputs.
    if module is program.graph_module:
        weights = _weights(program.graph_signature)
    inside = set(nodes)
    outside = dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in inside)
    # ExportedProgram wants weights before the inputs of the user.
    inputs = sorted(
        (n for n in outside if n.op != "get_attr"), key=lambda n: _weight_name(n) not in weights
    )
    outputs = tuple(n for n in nodes if not set(n.users) <= inside)
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        # ``placeholder`` makes names that are valid in Python, and the signature has the original
        # ones.
        copies[node].name, copies[node].meta = node.name, dict(node.meta)
    # get_attr stands for constants and graphs, which cannot be passed to a part.
    for node in (*(n for n in outside if n.op == "get_attr"), *nodes):
        copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output(tuple(copies[n] for n in outputs))
    results = [copies[n].name for n in outputs]
    part = _program(program, fx.GraphModule(module, graph), inputs, weights, results)
    return Part(part, tuple(inputs), outputs)


def _weights(signature: ExportGraphSignature) -> dict[str, InputSpec]:
    """Return the inputs of a program that never change, by name."""
    # A buffer that the program writes to is a state: its value at export time is not a constant.
    changed = {s.target for s in signature.output_specs if s.kind != OutputKind.USER_OUTPUT}
    held = (s for s in signature.input_specs if s.kind in _WEIGHTS)
    return {s.arg.name: s for s in held if s.target not in changed}


def _weight_name(node: fx.Node) -> str:
    return node.name if node.op == "placeholder" else ""


def _program(
    whole: ExportedProgram,
    root: fx.GraphModule,
    inputs: Sequence[fx.Node],
    weights: Mapping[str, InputSpec],
    results: Sequence[str],
) -> ExportedProgram:
    kept = [weights[n.name] for n in inputs if _weight_name(n) in weights]
    arguments = [_argument(n) for n in inputs[len(kept) :]]
    signature = ExportGraphSignature(
        [*kept, *(InputSpec(InputKind.USER_INPUT, one, None) for one in arguments)],
        [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(name), None) for name in results],
    )
    targets = {spec.target for spec in kept}
    # torch unflattens calls by these trees, of which only the structure counts.
    placed: Any = tuple(None for _ in arguments), {}
    call = ModuleCallSignature(
        inputs=list(arguments),
        outputs=[TensorArgument(name) for name in results],
        in_spec=pytree.tree_structure(placed),
        out_spec=pytree.tree_structure(tuple(None for _ in results)),
    )
    return ExportedProgram(
        root=root,
        graph=root.graph,
        graph_signature=signature,
        # A backend that stores the whole dictionary must not get the weights of other parts.
        state_dict={k: v for k, v in whole.state_dict.items() if k in targets},
        range_constraints=whole.range_constraints,
        module_call_graph=[ModuleCallEntry(fqn="", signature=call)],
        constants={k: v for k, v in whole.constants.items() if k in targets},
        verifiers=whole.verifiers,
    )


def _argument(node: fx.Node) -> TensorArgument | SymIntArgument:
    if isinstance(node.meta.get("val"), torch.SymInt):
        return SymIntArgument(node.name)
    return TensorArgument(node.name)
