"""Replaces rotary embeddings with onnxruntime's RotaryEmbedding."""

from __future__ import annotations

import numpy as np

from coreai_onnx.model.inventory import CONTRIB_DOMAIN
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    VIEWS,
    Dim,
    attribute_of,
    dtype_of,
    is_standard,
    made_by,
    maker,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why

_ELEMENTWISE = ("Cast", "Cos", "Sin", "Mul")


@rewrites(composites=("rope",))
def contrib_rope(edit: Edit, node: gs.Node, why: Why) -> bool:
    """rope with the same angles for every batch item → RotaryEmbedding.

    ai.coreai::rope(x, Expand(cos:[1, 1, s, f]), Expand(sin))
    becomes     com.microsoft::RotaryEmbedding(x, [0], cos:[s, f], sin:[s, f])

    Angles are read from the first position on, without a copy per batch item.
    """
    pair = edit.once(Tables, edit).of(node)
    if pair is None:
        return why("the angles may differ within the batch", node)
    start = edit.constant(f"{node.outputs[0].name}_start", np.zeros(1, np.int64))
    inputs = [node.inputs[0], start, *pair]
    edit.become(node, "RotaryEmbedding", inputs, domain=CONTRIB_DOMAIN)
    return True


class Tables:
    """Cosines and sines shared by all batch items as matrices, each created once."""

    def __init__(self, edit: Edit) -> None:
        self._edit = edit
        self._known: dict[gs.Tensor, gs.Tensor] = {}

    def of(self, node: gs.Node) -> tuple[gs.Tensor, gs.Tensor] | None:
        """Return the tables of a rope, ``[length, lanes / 2]``; None if batch items differ."""
        if len(node.inputs) != 3 or any(tensor.is_empty() for tensor in node.inputs):
            return None
        if attribute_of(node, "dims", 0) != 0 or attribute_of(node, "interleaved", 0) != 0:
            return None
        shape, (cos, sin) = shape_of(node.inputs[0]), map(self._row, node.inputs[1:])
        if shape is None or len(shape) != 4 or cos is None or sin is None:
            return None
        if {dtype_of(t) for t in (cos, sin)} != {dtype_of(node.inputs[0])}:
            return None
        return self._matrix(cos, node), self._matrix(sin, node)

    def _row(self, table: gs.Tensor) -> gs.Tensor | None:
        """Return the angles of one batch item."""
        expand = made_by(table, "Expand")
        for tensor in (table, *([] if expand is None else [expand.inputs[0]])):
            # [1, 1, s, f]: the same for all batch items and heads.
            if _dims(tensor) is not None and len(tensor.shape) == 4:
                return tensor
        return None

    def _matrix(self, table: gs.Tensor, like: gs.Node) -> gs.Tensor:
        """Return ``[1, 1, s, f]`` as ``[s, f]``, converting the tables it is computed from."""
        if table not in self._known:
            dims = _dims(table)
            assert dims is not None
            matrix = table if len(table.shape) == 2 else self._made(table, dims, like)
            if matrix is not table and matrix.shape is None:
                matrix.dtype, matrix.shape = table.dtype, list(dims)
            self._known[table] = matrix
        return self._known[table]

    def _made(self, table: gs.Tensor, dims: tuple[Dim, Dim], like: gs.Node) -> gs.Tensor:
        """Compute a matrix from the sources of a table, before ``like``."""
        edit, node = self._edit, maker(table)
        # Views and casts at the source are shared by cosines and sines, and all layers.
        if node is not None and is_standard(node, *_ELEMENTWISE) and _is_of_tables(node):
            parts = [
                tensor if len(tensor.shape) < 2 else self._matrix(tensor, like)
                for tensor in node.inputs
            ]
            return edit.add(node.op, like, parts, **node.attrs)
        if node is not None and is_standard(node, *VIEWS):
            if _dims(node.inputs[0]) == dims:
                return self._matrix(node.inputs[0], like)
            if shape_of(node.inputs[0]) == dims[:1]:  # the shape without the last axis
                last = edit.constant(f"{table.name}_last", np.array([1], np.int64))
                return edit.add("Unsqueeze", like, [node.inputs[0], last])
        lead = np.arange(len(table.shape) - 2, dtype=np.int64)
        axes = edit.constant(f"{table.name}_lead", lead)
        return edit.add("Squeeze", like, [table, axes])


def _dims(table: gs.Tensor) -> tuple[Dim, Dim] | None:
    """Return the last two dims of a table if all others are 1."""
    shape = shape_of(table)
    if shape is None or len(shape) < 2 or None in shape or set(shape[:-2]) - {1}:
        return None
    return shape[-2], shape[-1]


def _is_of_tables(node: gs.Node) -> bool:
    """Whether a node reads only tables, and rows and scalars that are broadcast to them."""
    shapes = [shape_of(tensor) for tensor in node.inputs]
    few = [shape is not None and len(shape) < 2 for shape in shapes]
    return all(a or _dims(b) is not None for a, b in zip(few, node.inputs, strict=True))
