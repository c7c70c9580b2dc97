"""The backend "tiny": turns parts of a program into the text that tiny_ops.cc runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.export import ExportedProgram

from coreai_onnx.delegation import (
    BackendDetails,
    CapabilityPartitioner,
    CompileSpec,
    DelegationSpec,
    PreprocessResult,
    backend,
)

aten = torch.ops.aten
OPERATORS = {aten.mm.default: "mm", aten.add.Tensor: "add", aten.sin.default: "sin"}


@backend("tiny")
class Tiny(BackendDetails):
    """Writes one line per operator: its name, and the numbers of the values that it reads."""

    version = "1"

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram,
        compile_specs: Sequence[CompileSpec],  # noqa: ARG004 - this backend has no settings
    ) -> PreprocessResult:
        """Return the text; values are numbered from the inputs on."""
        numbers: dict[torch.fx.Node, int] = {}
        lines = []
        for node in edge_program.graph.nodes:
            if node.op == "output":
                lines += [f"return {numbers[result]}" for result in node.args[0]]
                continue
            if node.op == "call_function":
                operands = [str(numbers[operand]) for operand in node.args]
                lines.append(" ".join([OPERATORS[node.target], *operands]))
            numbers[node] = len(numbers)
        return PreprocessResult("\n".join(lines).encode(), holds_weights=False)


def unsupported(node: torch.fx.Node) -> str:
    """Return why the backend cannot run an operator; empty if it can."""
    if node.target not in OPERATORS:
        return f"{node.target} is not one of tiny's operators"
    values = [node, *node.args]
    if not all(isinstance(value, torch.fx.Node) for value in values):
        return "tiny reads tensors only"
    tensors = [value.meta["val"] for value in values]
    if any(tensor.dtype != torch.float32 for tensor in tensors):
        return "tiny computes float32 only"
    if node.target is aten.add.Tensor and len({tuple(t.shape) for t in tensors}) > 1:
        return "tiny does not broadcast"
    return ""


TINY = CapabilityPartitioner(DelegationSpec("tiny"), unsupported)
