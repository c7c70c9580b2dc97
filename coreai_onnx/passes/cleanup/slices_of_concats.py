"""Removes slices that return an input of a Concat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    Dim,
    attribute_of,
    axes_of,
    input_of,
    ints_of,
    made_by,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why

END = np.iinfo(np.int32).max
"""An end beyond every axis: exporters write any value from here to the largest int64."""


@rewrites("Slice", "Split")
def slices_of_concats(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Slice or Split of a Concat that returns one of its inputs → that input.

    Concat(a:[b, 1], c:[b, s]) ─Slice(1:)→ y ─Relu→ z     becomes     c ─Relu→ z
    """
    if node.op == "Slice":
        part = _slice(node)
        return part is not None and edit.bypass_or(why, node, part)
    parts = _split(node)
    if parts is None:
        return False
    if any(edit.is_output(tensor) for tensor in node.outputs):
        return why("it names a graph output", node)
    for old, new in zip(list(node.outputs), parts, strict=True):
        edit.replace(old, new)
    edit.remove(node)
    return True


def _joined(tensor: gs.Tensor, axis: int) -> Sequence[gs.Tensor] | None:
    concat, shape = made_by(tensor, "Concat"), shape_of(tensor)
    if concat is None or not shape:
        return None
    along = attribute_of(concat, "axis", None)
    same = isinstance(along, int) and along % len(shape) == axis % len(shape)
    return list(concat.inputs) if same else None


def _lengths(parts: Sequence[gs.Tensor], axis: int) -> list[Dim]:
    shapes = [shape_of(part) for part in parts]
    return [s[axis] if s is not None and -len(s) <= axis < len(s) else None for s in shapes]


def _slice(node: gs.Node) -> gs.Tensor | None:
    """Return the input of the Concat that equals a slice of one axis."""
    if input_of(node, 1) is None:  # before opset 10, starts and ends are attributes
        return None
    starts, ends, axes = ints_of(node.inputs[1]), ints_of(node.inputs[2]), axes_of(node, 3)
    steps = ints_of(node.inputs[4]) if len(node.inputs) > 4 else [1]
    if starts is None or ends is None or axes is None or len(axes) != 1 or steps != [1]:
        return None
    parts = _joined(node.inputs[0], axes[0])
    if parts is None:
        return None
    lengths, start, end = _lengths(parts, axes[0]), starts[0], ends[0]
    for index, part in enumerate(parts):
        before, after = _total(lengths[:index]), _total(lengths[index + 1 :])
        length = lengths[index]
        # A negative start counts from the end of the axis, so all parts from this one on must be
        # known.
        begins = start == before or (
            start < 0 and isinstance(length, int) and after is not None and start == -length - after
        )
        ends_here = (
            (after == 0 and end >= END)
            or (after is not None and after > 0 and end == -after)
            or (isinstance(length, int) and before is not None and end == before + length)
        )
        if begins and ends_here:
            return part
    return None


def _total(lengths: Sequence[Dim]) -> int | None:
    total = 0
    for length in lengths:
        if not isinstance(length, int):
            return None
        total += length
    return total


def _split(node: gs.Node) -> Sequence[gs.Tensor] | None:
    """Return the inputs of the Concat, if they equal the parts of the Split."""
    axis = attribute_of(node, "axis", 0)
    parts = _joined(node.inputs[0], axis) if isinstance(axis, int) else None
    if parts is None or len(parts) != len(node.outputs):
        return None
    lengths, out = _lengths(parts, axis), _lengths(list(node.outputs), axis)
    whole = all(isinstance(length, int) for length in lengths)
    return parts if whole and lengths == out else None
