"""Warnings about operators that a decomposition of the program has taken apart."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from coreai_onnx.composites import TORCH_OPS
from coreai_onnx.errors import LostCompositesWarning, UnusedLoweringWarning
from coreai_onnx.export.capture.explain import outside
from coreai_onnx.export.functionalize.replaced_graph import nodes_of
from coreai_onnx.lower.walk.location import where_of

# The composites that torch's default decompositions take apart. Of other norms they leave an op
# that is lowered to the same composite.
_LOSES = {op: composite.name for op, composite in TORCH_OPS.items()} | {
    "aten.instance_norm.default": "instance_norm",
    "aten.rms_norm.default": "rms_norm",
    "aten.scaled_dot_product_attention.default": "scaled_dot_product_attention",
}
_KEEPS = {
    **_LOSES,
    # An instance norm with running statistics is a batch norm.
    "aten._native_batch_norm_legit_no_training.default": "instance_norm",
    "aten._fused_rms_norm.default": "rms_norm",
    "aten._scaled_dot_product_flash_attention_for_cpu.default": "scaled_dot_product_attention",
}


def warn_about_lost_composites(program: ExportedProgram) -> None:
    """Warn if operators that are composites were decomposed before the conversion.

    Warns:
        LostCompositesWarning: Once, with the composites, their number, and the first location.
    """
    lost = list(_lost(program))
    if not lost:
        return
    counts = Counter(name for name, _ in lost)
    listed = ", ".join(f"{count}x {name}" for name, count in counts.most_common())
    warnings.warn(
        f"{len(lost)} composite(s) were decomposed before the conversion, so that the file has "
        f"their single operators: {listed}\n"
        f"  first at {where_of(lost[0][1])}\n"
        "  to keep them, convert the program without run_decompositions, or call "
        "run_decompositions(coreai_onnx.get_decomp_table())",
        LostCompositesWarning,
        stacklevel=outside(),
    )


def warn_about_unused_lowerings(program: ExportedProgram, names: Collection[str]) -> None:
    """Warn if operators with lowerings of the user were decomposed before the conversion.

    Args:
        program: The program.
        names: The operators, ``aten.relu.default``.

    Warns:
        UnusedLoweringWarning: Once, with the operators and their first locations.
    """
    nodes = list(nodes_of(program.graph_module))
    kept = {str(node.target) for node in nodes}
    gone = {
        str(source.target): node
        for node in reversed(nodes)
        for source in _sources(node)
        if str(source.target) in names and str(source.target) not in kept
    }
    if gone:
        listed = "".join(f"\n  {name} at {where_of(node)}" for name, node in gone.items())
        warnings.warn(
            "the lowerings registered for these operators are not called, because the operators "
            f"were replaced before the conversion:{listed}\n"
            "  leave them out of the table of run_decompositions, or register lowerings for the "
            "operators that replace them",
            UnusedLoweringWarning,
            stacklevel=outside(),
        )


def _lost(program: ExportedProgram) -> Iterator[tuple[str, fx.Node]]:
    """Yield the composites that were taken apart, each with a node of its decomposition."""
    calls: dict[Any, tuple[str, list[fx.Node]]] = {}
    for node in nodes_of(program.graph_module):
        call = _call_of(node)
        if call is not None:
            name, composite = call
            calls.setdefault((node.graph, name), (composite, []))[1].append(node)
    for composite, nodes in calls.values():
        if not _is_kept(composite, nodes):
            yield composite, nodes[0]


def _call_of(node: fx.Node) -> tuple[str, str] | None:
    """Return the name of the call that a node was decomposed from, and its composite."""
    if not str(node.target).startswith("aten."):
        return None  # a part that a backend computes, and what is read of its results
    calls = ((s.name, _LOSES[str(s.target)]) for s in _sources(node) if str(s.target) in _LOSES)
    return next(calls, None)


def _sources(node: fx.Node) -> Iterator[Any]:
    """Yield the nodes of earlier traces that a node comes from, the latest first."""
    # Each trace of a program adds a level. Unlike original_aten, the levels tell two calls of one
    # op apart, and a file (.pt2) keeps them.
    sources = node.meta.get("from_node")
    while sources:
        yield sources[-1]
        sources = sources[-1].from_node


def _is_kept(composite: str, nodes: list[fx.Node]) -> bool:
    """Whether the nodes of a call are the composite, become it, or could not be."""
    targets = [str(node.target) for node in nodes]
    if any(_KEEPS.get(target) == composite for target in targets):
        return True
    # The passes find a norm with a scale, the factor of a second product.
    if composite == "rms_norm" and targets.count("aten.mul.Tensor") > 1:
        return True
    result = nodes[-1].meta.get("val")
    return not (isinstance(result, torch.Tensor) and result.is_floating_point())
