"""Decompositions, and tensor subclasses that they unwrap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from coreai_onnx.errors import ExportError
from coreai_onnx.export.compat.torch_names import (
    VMAP_MARKS,
    OpOverloadPacket,
    SpecViolationError,
    is_traceable_wrapper_subclass,
    pytree,
    resolve_packet,
)
from coreai_onnx.export.functionalize.buffers import WRITES_INSIDE
from coreai_onnx.export.functionalize.in_place import mutates, without_in_place
from coreai_onnx.export.functionalize.lifted_constants import (
    lifted_constants,
    mutated_constants,
    without_twins,
)
from coreai_onnx.export.functionalize.replaced_graph import copy_of, nodes_of, with_graph


def functional(program: ExportedProgram, names: Mapping[int, str] | None = None) -> ExportedProgram:
    """Return the program without in-place ops, mutations and ``vmap`` marks; itself if it has none.

    An undecomposed program may mutate buffers, inputs and views; the result has every mutated
    buffer and input as an extra output. A tensor that the module holds in a plain attribute and
    mutates becomes a buffer. The markers of batch axes that ``vmap`` leaves around ops are
    resolved. Weights that are tensor subclasses become the plain tensors inside them.

    Args:
        program: The program.
        names: Names for tensors in plain attributes, by their id; others are named after their
            placeholders.

    Raises:
        ExportError: A tensor in a plain attribute is mutated in a way that cannot be traced, or a
            branch or loop mutates a tensor from outside.
    """
    program = _with_settled_overloads(unwrapped(program))
    if not _needs_work(program):
        return program
    rewritten: ExportedProgram | None = without_in_place(program, names or {})
    # What remains, such as the marks of vmap, only a retrace by torch resolves.
    if rewritten is not None and not _needs_work(rewritten):
        return rewritten
    # torch's retrace does not accept one tensor as two inputs.
    program = without_twins(program, lifted_constants(program, names))
    mutations = [node for node in program.graph.nodes if mutates(node)]
    changed = mutated_constants(mutations, program.graph, lifted_constants(program, names))
    if changed:  # torch's retrace does not handle them
        raise ExportError(
            f"forward changes {', '.join(changed)} in place, by ops or through views that cannot "
            "be followed; torch treats these tensors as constants\n  register them with "
            "register_buffer, and take views of them inside forward"
        )
    try:
        with torch.no_grad():
            retraced: ExportedProgram = program.run_decompositions({})
    except SpecViolationError as error:  # only the graphs of branches and loops are not functional
        raise ExportError("\n  ".join(WRITES_INSIDE)) from error
    return retraced


def _with_settled_overloads(program: ExportedProgram) -> ExportedProgram:
    """Return the program with each call of a packet replaced by one of the selected overload.

    Graph passes may create calls of packets (``aten.round``). The arguments select the overload.
    """
    if not any(_calls_packet(node) for node in nodes_of(program.graph_module)):
        return program
    module = copy_of(program.graph_module)
    for node in nodes_of(module):
        if _calls_packet(node):
            node.target = _chosen(node)
    return with_graph(program, module)


def _chosen(node: fx.Node) -> Any:
    """Return the overload that the arguments of a call of a packet select."""
    arguments: Any = (node.args, node.kwargs)
    args, kwargs = fx.map_arg(arguments, lambda n: n.meta["val"])
    name = str(node.target).replace(".", "::", 1)
    return getattr(node.target, resolve_packet(name, *args, **kwargs) or "default")


def _calls_packet(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverloadPacket)


def _needs_work(program: ExportedProgram) -> bool:
    return any(mutates(node) or _marks_batch(node) for node in nodes_of(program.graph_module))


def _marks_batch(node: fx.Node) -> bool:
    """Whether a node is a batch-axis marker of ``vmap``."""
    return getattr(node.target, "__module__", "") == VMAP_MARKS


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
        plain: ExportedProgram = program.run_decompositions({})
    return plain


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
    # Plain parameters keep theirs: only what is restored below may change.
    changed = [x for x in weights if x.requires_grad and is_traceable_wrapper_subclass(x)]
    for weight in changed:
        weight.requires_grad = False
    try:
        yield
    finally:
        for weight in changed:
            weight.requires_grad = True
