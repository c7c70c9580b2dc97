"""The angles of rotations as constants, for all positions of a model."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from coreai_onnx.passes.analysis.evaluate import CannotEvaluateError, evaluate
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import (
    attribute_of,
    composite,
    constant_of,
    dtype_of,
    is_standard,
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


class RotaryTables:
    """Cosines and sines ``[max_positions, lanes / 2]``, each computed once."""

    def __init__(self, edit: Edit, positions: gs.Tensor | None, max_positions: int | None) -> None:
        self._edit, self._positions, self._count = edit, positions, max_positions
        self._known: dict[gs.Tensor, np.ndarray | str] = {}
        self._made: dict[gs.Tensor, gs.Constant] = {}

    def of(self, ropes: Sequence[gs.Node | None]) -> tuple[gs.Tensor, gs.Tensor, int] | str:
        """Return the tables of queries and keys, and whether pairs are neighbors; or why not."""
        first, second = ropes
        if first is None or second is None:
            return "queries and keys must both be rotated"
        for rope in (first, second):
            if composite(rope, "rope") is None or len(rope.inputs) != 3:
                return "queries and keys must both be rotated, by given angles"
            # The op refuses tables for heads that are not a multiple of 16.
            if attribute_of(rope, "dims", 0) or int(rope.inputs[0].shape[3]) % 16:
                return "the op rotates whole heads, of a multiple of 16 lanes"
        same = attribute_of(first, "interleaved", 0) == attribute_of(second, "interleaved", 0)
        if not same or any(a is not b for a, b in zip(first.inputs[1:], second.inputs[1:], strict=True)):
            return "queries and keys are rotated by different angles"
        if self._positions is None or self._count is None:
            return "the number of positions is not known"
        lanes = int(first.inputs[0].shape[3]) // 2
        for angles in first.inputs[1:]:
            table = self._value(angles)
            if isinstance(table, str):
                return table
            if table.shape != (1, 1, self._count, lanes):
                return "the angles are not those of all heads"
            if angles not in self._made:
                self._made[angles] = self._edit.constant(f"{angles.name}_table", table[0, 0])
        cos, sin = (self._made[angles] for angles in first.inputs[1:])
        if {dtype_of(cos), dtype_of(sin)} != {dtype_of(first.inputs[0])}:
            return "the angles have another dtype than the queries"
        return cos, sin, int(attribute_of(first, "interleaved", 0) != 0)

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
