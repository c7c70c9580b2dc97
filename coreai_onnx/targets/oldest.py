"""The oldest onnxruntime that runs a model, by the table of releases."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from coreai_onnx.errors import TargetError
from coreai_onnx.model.inventory import CONTRIB_DOMAIN, all_nodes, roots
from coreai_onnx.model.standard.op_schemas import ONNX_DOMAINS
from coreai_onnx.targets.releases import (
    Release,
    newest_opset,
    oldest_onnxruntime,
    release_of,
    since,
    text_of,
)


def node_since(node: ir.Node) -> Release | None:
    """Return the first release with a node; None for a node of a domain that is not onnxruntime's.

    Values without a dtype are not judged.
    """
    if node.domain not in (CONTRIB_DOMAIN, *ONNX_DOMAINS):
        return None
    attributes = {name: one.value for name, one in node.attributes.items()}
    # An unknown dtype keeps its place: that of axes is not the dtype of the first input.
    dtypes = [value.dtype.name.lower() if value and value.dtype else "" for value in node.inputs]
    domain = CONTRIB_DOMAIN if node.domain == CONTRIB_DOMAIN else ""
    return since(domain, node.op_type, attributes, len(node.inputs), dtypes)


def check_oldest(model: ir.Model, minimum: str, *, opset: bool = True) -> None:
    """Check that a release has what a model contains; the error lists what it lacks.

    Args:
        model: The model.
        minimum: The release, as ``minimum_onnxruntime``.
        opset: Whether the opset is final.

    Raises:
        TargetError: It lacks the opset, an op, or a form of one.
    """
    release = release_of(minimum)
    newest = newest_opset(minimum)
    lacks: Counter[str] = Counter()
    for root in roots(model):
        version = root.opset_imports.get("", 0)
        if opset and version > newest:
            raise TargetError(
                f"opset {version} needs onnxruntime {oldest_onnxruntime(version)}, but "
                f"minimum_onnxruntime is {minimum}\n"
                f'  convert the program with minimum_onnxruntime="{minimum}"'
            )
    for node in all_nodes(model):
        first = node_since(node)
        if first is not None and first > release:
            lacks[f"{node.op_type} of onnxruntime {text_of(first)}"] += 1
    if lacks:
        lines = "".join(f"\n  {count}x {what}" for what, count in sorted(lacks.items()))
        raise TargetError(f"minimum_onnxruntime is {minimum}, and the model has{lines}")
