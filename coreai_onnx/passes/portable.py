"""The portable target: one flat graph of widely supported ops (opset 18)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from coreai_onnx.errors import TargetError
from coreai_onnx.model.checks.violations import new_violations
from coreai_onnx.model.metadata import adopt
from coreai_onnx.model.standard.model_types import ModelTypes
from coreai_onnx.targets.older_forms import OLDER_FORMS, call_older_form, obstacle
from coreai_onnx.targets.opsets import PORTABLE_IR_VERSION, PORTABLE_OPSET


def make_portable(model: ir.Model) -> int:
    """Inline every function and convert the model to opset 18, in place.

    Args:
        model: A model whose ops all exist with the same meaning at opset 18, or can be written with
            such ops: a program lowered at opset 18, or at a newer opset without ops that changed
            since.

    Returns:
        The number of inlined calls and of nodes that were written with older ops; 0 if the model
        was already portable.

    Raises:
        TargetError: An op, one of its attributes or dtypes was added after opset 18, or an op is
            of another domain and has no body; the model is unchanged.
    """
    result, count = _portable(model)
    if result is not model:
        adopt(result, model)
    model.ir_version = min(model.ir_version, PORTABLE_IR_VERSION)
    return count


def check_portable(model: ir.Model) -> None:
    """Check that the model can be written with opset 18; the error lists all that it does not have.

    Raises:
        TargetError: As for :func:`make_portable`.
    """
    _portable(model)


def _portable(model: ir.Model) -> tuple[ir.Model, int]:
    """Return a portable copy, or the model itself if it is portable, and the number of changes."""
    _check_ops(model)
    opset = model.graph.opset_imports.get("", PORTABLE_OPSET)
    if not model.functions and opset <= PORTABLE_OPSET and model.graph.opset_imports.keys() <= {""}:
        return model, 0
    # A copy, so that an error leaves the model as it is: whether it fits shows only at the end.
    result = model.clone()
    count = _inline(result)
    if opset > PORTABLE_OPSET:
        _call_older_forms(result, opset)
    # Before the calls of older forms are inlined: InlinePass refuses a body of another opset than
    # the model's, and theirs is 18.
    _lower_opset(result)
    count += _inline(result)
    # `_check_ops` skips ops that have an older form; one of them in a dtype without such a form
    # shows up here.
    if violations := new_violations(model, result):
        raise _not_portable(map(str, violations))
    return result, count


def _inline(model: ir.Model) -> int:
    """Inline every call; return the number of call nodes, of those in function bodies too."""
    calls = sum(node.op_identifier() in model.functions for node in _nodes(model))
    if calls:
        InlinePass()(model)
    model.functions.clear()
    return calls


def _call_older_forms(model: ir.Model, opset: int) -> None:
    """Make calls of the nodes that have another form at opset 18.

    Functions are inlined before: the dtypes of a body depend on the call.
    """
    newer = [node for node in model.graph.all_nodes() if node.op_type in OLDER_FORMS]
    if not newer:
        return
    types = ModelTypes(lambda _: None, model.ir_version, bodies=True).of_graph(model.graph)
    for node in newer:
        value = node.inputs[0] if node.inputs else None
        if value is not None and value in types:
            dtype = ir.DataType(types[value].tensor_type.elem_type)
            call_older_form(model, node, dtype, opset, PORTABLE_OPSET)


def _lower_opset(model: ir.Model) -> None:
    model.graph.opset_imports.setdefault("", PORTABLE_OPSET)
    # No node of these domains is left, and a runtime may refuse a file for an import that it does
    # not know.
    for domain in [d for d in model.graph.opset_imports if d != ""]:
        del model.graph.opset_imports[domain]
    for graph in (model.graph, *model.graph.subgraphs()):
        if "" in graph.opset_imports:
            graph.opset_imports[""] = min(PORTABLE_OPSET, graph.opset_imports[""])
    for node in model.graph.all_nodes():
        # None follows the opset of the graph; a version of its own would still be the newer one.
        node.version = None


def _check_ops(model: ir.Model) -> None:
    obstacles: Counter[str] = Counter()
    for root in _roots(model):
        opset = root.opset_imports.get("", PORTABLE_OPSET)
        for node in root.all_nodes():
            reason = ""
            if node.domain not in ("", "ai.onnx"):
                reason = "" if node.op_identifier() in model.functions else "has no body"
            # Whether an older form is needed depends on the dtype, which is inferred later.
            elif opset > PORTABLE_OPSET and node.op_type not in OLDER_FORMS:
                reason = obstacle(node, opset, PORTABLE_OPSET)
            if reason:
                domain = f"{node.domain}::" if node.domain else ""
                obstacles[f"{domain}{node.op_type} {reason}"] += 1
    if obstacles:
        raise _not_portable(f"{count}x {reason}" for reason, count in sorted(obstacles.items()))


def _not_portable(reasons: Iterable[str]) -> TargetError:
    lines = "".join(f"\n  {reason}" for reason in reasons)
    return TargetError(
        f"the target portable needs opset {PORTABLE_OPSET}, and this program has{lines}\n"
        f"  convert it with opset_version={PORTABLE_OPSET}; the model is unchanged"
    )


def _roots(model: ir.Model) -> list[ir.Graph | ir.Function]:
    return [model.graph, *model.functions.values()]


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    for root in _roots(model):
        yield from root.all_nodes()
