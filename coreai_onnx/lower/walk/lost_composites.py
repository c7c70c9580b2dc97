"""The warning about composites that a decomposition of the program has taken apart."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from coreai_onnx.composites import TORCH_OPS
from coreai_onnx.errors import LostCompositesWarning
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
    # Each trace of a program adds a level. Unlike original_aten, the levels tell two calls of one
    # op apart, and a file (.pt2) keeps them.
    sources = node.meta.get("from_node")
    while sources:
        source = sources[-1]
        if str(source.target) in _LOSES:
            return source.name, _LOSES[str(source.target)]
        sources = source.from_node
    return None


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
