"""The report of a conversion to 16 bits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from coreai_onnx.messages import render, size_text


@dataclass(frozen=True)
class KeptNode:
    """A node that keeps float32.

    Attributes:
        path: Module path, or else the name of the node.
        op: Its op.
        reason: Why it keeps float32.
    """

    path: str
    op: str
    reason: str


@dataclass(frozen=True)
class DtypeReport:
    """What was converted; prints as text.

    Attributes:
        dtype: ``"float16"`` or ``"bfloat16"``.
        converted: Number of nodes that compute in this dtype.
        kept: The nodes that keep float32, in the order of the model.
        bytes_before: Size of all weights before.
        bytes_after: Their size after.
    """

    dtype: str
    converted: int
    kept: tuple[KeptNode, ...]
    bytes_before: int
    bytes_after: int

    def __str__(self) -> str:
        """Return sizes, and how many nodes of each op keep float32 and why."""
        sizes = f"{size_text(self.bytes_before)} → {size_text(self.bytes_after)}"
        text = f"{self.dtype}: {self.converted} nodes, weights {sizes}"
        if not self.kept:
            return text
        counts = Counter((kept.op, kept.reason) for kept in self.kept)
        first = {(kept.op, kept.reason): kept.path for kept in reversed(self.kept)}
        rows = [(count, op, why, first[op, why]) for (op, why), count in counts.most_common()]
        return f"{text}\n\n{render(('nodes', 'op', 'keeps float32', 'first'), rows, indent='  ')}"
