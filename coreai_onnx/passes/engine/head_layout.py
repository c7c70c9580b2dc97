"""The two layouts of heads: ``[b, h, s, d]`` and ``[b, s, h * d]``."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import Dim

PERM = [0, 2, 1, 3]
"""The permutation from one layout to the other, and back."""


def joined_heads(
    edit: Edit, tensor: gs.Tensor, like: gs.Node, width: int
) -> tuple[gs.Tensor, gs.Tensor]:
    """Return ``[b, h, s, d]`` transposed, and as ``[b, s, width]``; both still untyped."""
    turned = edit.node("Transpose", like, [tensor], perm=PERM).outputs[0]
    target = edit.constant(f"{tensor.name}_row", np.array([0, 0, width], np.int64))
    return turned, edit.node("Reshape", like, [turned, target]).outputs[0]


def split_heads(edit: Edit, row: gs.Tensor, like: gs.Node, heads: int, size: int) -> gs.Tensor:
    """Return ``[b, s, heads * size]`` as ``[b, s, heads, size]``; still untyped."""
    target = edit.constant(f"{row.name}_heads", np.array([0, 0, heads, size], np.int64))
    return edit.node("Reshape", like, [row, target]).outputs[0]


def side_by_side(edit: Edit, tensor: gs.Tensor, like: gs.Node) -> gs.Tensor:
    """Return ``tensor:[b, h, s, d]`` as ``[b, s, h * d]``, computed before ``like``.

    ``h`` and ``d`` must be static; the dtype does not change.
    """
    batch, heads, length, size = tensor.shape
    turned, row = joined_heads(edit, tensor, like, heads * size)
    apart: list[Dim] = [batch, length, heads, size]
    turned.dtype, turned.shape = tensor.dtype, apart
    row.dtype, row.shape = tensor.dtype, [batch, length, heads * size]
    return row


def become_heads(edit: Edit, node: gs.Node, row: gs.Tensor, heads: int) -> None:
    """Make ``node`` return ``row:[b, s, h * d]`` as ``[b, h, s, d]``; the dtype does not change."""
    batch, length, width = row.shape
    size = width // heads
    apart = split_heads(edit, row, node, heads, size)
    apart.dtype, apart.shape = row.dtype, [batch, length, heads, size]
    edit.become(node, "Transpose", [apart], perm=PERM)
