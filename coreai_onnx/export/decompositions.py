"""Which ops torch takes apart before conversion, and which stay whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram

from coreai_onnx.export.in_place import without_in_place

aten = torch.ops.aten

WHOLE: tuple[Any, ...] = (
    # composites, or ops with a better direct form than their decomposition
    aten.scaled_dot_product_attention.default,
    aten.layer_norm.default,
    aten.rms_norm.default,
    aten.group_norm.default,
    aten.instance_norm.default,
    aten.silu.default,
    aten.hardsigmoid.default,
    aten.hardswish.default,
    aten.pixel_shuffle.default,
    aten.linear.default,
    aten.reflection_pad1d.default,
    aten.reflection_pad2d.default,
    aten.reflection_pad3d.default,
    aten.replication_pad1d.default,
    aten.replication_pad2d.default,
    aten.replication_pad3d.default,
)
"""Ops that the decomposition table leaves alone."""


def get_decomp_table() -> dict[Any, Callable[..., Any]]:
    """Return a fresh decomposition table for ``ExportedProgram.run_decompositions``.

    It is torch's default table without the ops that are lowered whole.
    """
    table = torch.export.default_decompositions()
    for op in WHOLE:
        table.pop(op, None)
    return dict(table.items())


def functional(program: ExportedProgram) -> ExportedProgram:
    """Return the program without in-place ops, hidden mutations and maps; itself if it has none.

    An undecomposed program may mutate buffers and views; torch makes it functional, with every
    mutated buffer and input as an extra output. It also works out what ``vmap`` left as marks of
    batch axes around ops.
    """
    if not _needs_work(program):
        return program
    program = without_in_place(program)
    if not _needs_work(program):
        return program
    with torch.no_grad():
        made: ExportedProgram = program.run_decompositions({})
    return made


def _needs_work(program: ExportedProgram) -> bool:
    return any(
        _mutates(n) or _marks_batch(n) for m in _graph_modules(program) for n in m.graph.nodes
    )


def _graph_modules(program: ExportedProgram) -> list[torch.fx.GraphModule]:
    modules = program.graph_module.modules()
    return [m for m in modules if isinstance(m, torch.fx.GraphModule)]


def _marks_batch(node: torch.fx.Node) -> bool:
    """Whether a node is a mark of ``vmap``."""
    return getattr(node.target, "__module__", "") == "torch._functorch.predispatch"


def _mutates(node: torch.fx.Node) -> bool:
    """Whether a node changes one of its inputs."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if target is aten.detach_.default:
        return False  # on the copy of a literal; it changes no number
    if target in (aten.batch_norm.default, aten.instance_norm.default):
        return bool(node.args[5])  # training, or use_input_stats with running statistics
    return target._schema.is_mutable
