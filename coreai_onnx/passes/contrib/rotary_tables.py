"""The angles of rotations as constants, for all positions of a model."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from coreai_onnx.passes.analysis.evaluate import CannotEvaluateError, evaluate
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import (
    attribute_of,
    composite,
    constant_of,
    dtype_of,
    ints_of,
    is_standard,
    made_by,
    maker,
    shape_of,
)

# Ops that do not mix positions: with them, the angles of a position depend on nothing else.
_BY_POSITION = (
    *("Add", "Sub", "Mul", "Div", "Cast", "Cos", "Sin", "Identity", "Neg"),
    *("Unsqueeze", "Squeeze", "Transpose", "Concat", "Slice"),
)
_LARGEST = 1 << 16
"""Frequencies with more elements are not read."""


@dataclass(frozen=True)
class Rotation:
    """A rotation of heads, or of their first lanes.

    Attributes:
        rope: The call.
        source: What it rotates, with the lanes that it leaves.
    """

    rope: gs.Node
    source: gs.Tensor

    @property
    def head_dim(self) -> int:
        """The size of a head."""
        return int(self.source.shape[3])

    @property
    def lanes(self) -> int:
        """The number of lanes that are rotated."""
        return int(self.rope.inputs[0].shape[3])

    @property
    def interleaved(self) -> int:
        """Whether pairs are neighbors."""
        return int(attribute_of(self.rope, "interleaved", 0) != 0)


def rotation_of(tensor: gs.Tensor) -> Rotation | None:
    """Return the rotation that makes a tensor ``[b, h, s, d]``, by cosines and sines of a call.

    rope(x), or Concat(rope(x[:, :, :, :r]), x[:, :, :, r:])
    """
    rope, source = maker(tensor), None
    concat = made_by(tensor, "Concat")
    if concat is not None and len(concat.inputs) == 2:
        rope = maker(concat.inputs[0])
        parts = [None if rope is None else rope.inputs[0], concat.inputs[1]]
        slices = [None if part is None else made_by(part, "Slice") for part in parts]
        first, rest = (None if one is None else _last_axis_sliced(one) for one in slices)
        if first is None or rest is None or slices[0] is None or slices[1] is None:
            return None
        source = slices[0].inputs[0]
        size = (shape_of(source) or (None,) * 4)[3]
        joins = attribute_of(concat, "axis", 0) in (3, -1) and slices[1].inputs[0] is source
        if not joins or not isinstance(size, int) or first[0] or first[1] != rest[0]:
            return None
        if rest[1] < size:
            return None
    if rope is None or composite(rope, "rope") is None or len(rope.inputs) != 3:
        return None
    if attribute_of(rope, "dims", 0) or any(one.is_empty() for one in rope.inputs):
        return None
    return Rotation(rope, rope.inputs[0] if source is None else source)


def _last_axis_sliced(node: gs.Node) -> tuple[int, int] | None:
    """Return the bounds of a slice of the last of four axes, with steps of 1."""
    bounds = [ints_of(tensor) for tensor in node.inputs[1:]]
    if len(bounds) < 3 or any(bound is None or len(bound) != 1 for bound in bounds):
        return None
    start, end, axis, step = (*(bound[0] for bound in bounds if bound), 1)[:4]
    return (start, end) if axis in (3, -1) and step == 1 and start >= 0 and end > start else None


class RotaryTables:
    """Cosines and sines ``[max_positions, lanes / 2]``, each computed once."""

    def __init__(self, edit: Edit, positions: gs.Tensor | None, max_positions: int | None) -> None:
        self._edit, self._positions, self._count = edit, positions, max_positions or 0
        self._known: dict[gs.Tensor, np.ndarray | str] = {}
        self._made: dict[gs.Tensor, gs.Constant] = {}

    def of(self, first: Rotation, second: Rotation) -> tuple[gs.Tensor, gs.Tensor] | str:
        """Return the tables that queries and keys share, or why there are none."""
        pairs = zip(first.rope.inputs[1:], second.rope.inputs[1:], strict=True)
        if first.interleaved != second.interleaved or any(a is not b for a, b in pairs):
            return "queries and keys are rotated by different angles"
        # Conditions of the op.
        if first.head_dim % 16 or first.lanes % 16 or first.lanes != second.lanes:
            return "heads and their rotated lanes must be multiples of 16"
        if self._positions is None or not self._count:
            return "the number of positions is not known"
        tables = []
        for angles in first.rope.inputs[1:]:
            table = self._value(angles)
            if isinstance(table, str):
                return table
            if table.shape != (1, 1, self._count, first.lanes // 2):
                return "the angles are not those of all heads"
            if angles not in self._made:
                self._made[angles] = self._edit.constant(f"{angles.name}_table", table[0, 0])
            tables.append(self._made[angles])
        if {dtype_of(table) for table in tables} != {dtype_of(first.source)}:
            return "the angles have another dtype than the queries"
        return tables[0], tables[1]

    def _value(self, tensor: gs.Tensor) -> np.ndarray | str:
        """Return a tensor for all positions of one row, or why it has none."""
        if tensor not in self._known:
            self._known[tensor] = self._computed(tensor)
        return self._known[tensor]

    def _computed(self, tensor: gs.Tensor) -> np.ndarray | str:
        if tensor is self._positions:
            return np.arange(self._count, dtype=np.int64)[None]
        if isinstance(tensor, gs.Constant):
            values = constant_of(tensor, at_most=_LARGEST)
            return "a table of angles is large" if values is None else values
        node = maker(tensor)
        if node is None or not is_standard(node, *_BY_POSITION):
            what = "an input" if node is None else node.op
            return f"the angles depend on {what}, not on the position alone"
        # A chain of angles has a few nodes: recursion is deep enough.
        operands = [None if t.is_empty() else self._value(t) for t in node.inputs]
        for operand in operands:
            if isinstance(operand, str):
                return operand
        rank = len(shape_of(tensor) or ())
        try:
            (result,) = evaluate(node, operands, limit=sys.maxsize)
        except CannotEvaluateError as error:
            return f"the angles cannot be computed: {error}"
        return np.asarray(result) if rank == result.ndim else "the dims of angles are not known"
