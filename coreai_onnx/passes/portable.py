"""The portable target: one flat graph of widely supported ops (opset 18)."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from coreai_onnx.errors import TargetError
from coreai_onnx.passes.opsets import obstacle

OPSET = 18
IR_VERSION = 8
"""The ops that opset 18 introduced."""


def make_portable(model: ir.Model) -> int:
    """Inline every function and convert the model to opset 18, in place.

    Args:
        model: A model whose ops all exist with the same meaning at opset 18: a program lowered at
            opset 18, or at a newer opset without ops that changed since.

    Returns:
        The number of inlined calls; 0 if the model was already portable.

    Raises:
        TargetError: An op, one of its attributes or dtypes was added after opset 18, or an op is
            of another domain and has no body; the model is unchanged.
    """
    check_portable(model)
    calls = sum(node.op_identifier() in model.functions for node in _nodes(model))
    if calls:
        InlinePass()(model)
    model.functions.clear()
    model.graph.opset_imports.setdefault("", OPSET)
    for domain in [d for d in model.graph.opset_imports if d != ""]:
        del model.graph.opset_imports[domain]
    for graph in (model.graph, *model.graph.subgraphs()):
        if "" in graph.opset_imports:
            graph.opset_imports[""] = min(OPSET, graph.opset_imports[""])
    for node in model.graph.all_nodes():
        node.version = None
    model.ir_version = min(model.ir_version, IR_VERSION)
    return calls


def check_portable(model: ir.Model) -> None:
    """Check that opset 18 has every op; the error lists all that it does not have.

    Raises:
        TargetError: As for :func:`make_portable`.
    """
    found: dict[str, int] = {}
    roots: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for root in roots:
        opset = root.opset_imports.get("", OPSET)
        for node in root.all_nodes():
            if node.domain not in ("", "ai.onnx"):
                known = node.op_identifier() in model.functions
                reason = "" if known else "has no body"
            else:
                reason = obstacle(node, opset, OPSET) if opset > OPSET else ""
            if reason:
                key = f"{node.domain + '::' if node.domain else ''}{node.op_type} {reason}"
                found[key] = found.get(key, 0) + 1
    if found:
        lines = "".join(f"\n  {count}x {reason}" for reason, count in sorted(found.items()))
        raise TargetError(
            f"the target portable needs opset {OPSET}, and this program has{lines}\n"
            f"  convert it with opset_version={OPSET}; the model is unchanged"
        )


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    roots: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for root in roots:
        yield from root.all_nodes()
