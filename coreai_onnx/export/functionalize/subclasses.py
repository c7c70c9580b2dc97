"""Weights that are tensor subclasses, as torchao's ``quantize_`` makes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch.export import ExportedProgram

from coreai_onnx.export.compat.torch_names import is_traceable_wrapper_subclass, pytree


def unwrapped(program: ExportedProgram) -> ExportedProgram:
    """Return the program with each subclass among its weights replaced by the tensors inside.

    A weight with int8 values and a scale becomes two weights, and the operators that its class uses
    become nodes of the program. A program without subclasses is returned unchanged.

    Args:
        program: The program; it is not changed.
    """
    if not _has_subclasses(program):
        return program
    with torch.no_grad(), _without_gradients(program.state_dict.values()):
        made: ExportedProgram = program.run_decompositions({})
    return made


def _has_subclasses(program: ExportedProgram) -> bool:
    placeholders = (node for node in program.graph.nodes if node.op == "placeholder")
    values = pytree.tree_leaves([node.meta.get("val") for node in placeholders])
    return any(isinstance(x, torch.Tensor) and is_traceable_wrapper_subclass(x) for x in values)


@contextmanager
def _without_gradients(weights: Iterable[torch.Tensor]) -> Iterator[None]:
    """While active, subclasses do not require gradients.

    transformers loads parameters that require them. torch replaces such a subclass by parameters
    that require them as well, which tensors of integers cannot.
    """
    changed = [x for x in weights if x.requires_grad and is_traceable_wrapper_subclass(x)]
    for weight in changed:
        weight.requires_grad = False
    try:
        yield
    finally:
        for weight in changed:
            weight.requires_grad = True
