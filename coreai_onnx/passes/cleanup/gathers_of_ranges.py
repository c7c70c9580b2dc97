"""Removes GatherND by ranges, which models write that compute masks by indexing with positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import (
    Dim,
    attribute_of,
    axes_of,
    is_standard,
    made_by,
    rank_of,
    scalar_of,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why


@dataclass(frozen=True)
class Ramp:
    """A tensor whose elements count 0, 1, 2 … along one axis.

    Attributes:
        axis: The axis along which the elements count.
        rank: The number of axes.
        length: The number of distinct elements.
    """

    axis: int
    rank: int
    length: Dim


def gathers_of_ranges(graph: gs.Graph, why: Why) -> int:
    """GatherND by ranges over whole axes of the data → the data with axes of size 1.

    GatherND(x:[b, s], Concat(i:[b, 1, s, 1], j:[b, 1, s, 1])), i = 0 … b - 1, j = 0 … s - 1
    becomes     Unsqueeze(x, [1, 3])
    """
    edit, count = Edit(graph), 0
    for node in graph.nodes:
        if not is_standard(node, "GatherND") or attribute_of(node, "batch_dims", 0) != 0:
            continue
        axes = _free_axes(node, why)
        if axes is None:
            continue
        constant = edit.constant(f"{node.outputs[0].name}_axes", np.array(axes, np.int64))
        if axes:
            edit.become(node, "Unsqueeze", [node.inputs[0], constant])
        else:
            edit.become(node, "Identity", [node.inputs[0]])
        count += 1
    edit.finish()
    return count


def _free_axes(node: gs.Node, why: Why) -> list[int] | None:
    """Return the axes that the data lacks, if the indices are ranges over whole axes of it."""
    data, concat = shape_of(node.inputs[0]), made_by(node.inputs[1], "Concat")
    if data is None or concat is None:
        return None
    ramps = [_last_axis_dropped(tensor) for tensor in concat.inputs]
    found = [ramp for ramp in ramps if ramp is not None]
    if len(found) < len(ramps):
        return None
    rank, used = found[0].rank, [ramp.axis for ramp in found]
    if attribute_of(concat, "axis", 0) not in (-1, rank) or any(r.rank != rank for r in found):
        return None
    if used != sorted(set(used)):
        return why("the axes are gathered in another order", node) or None
    if len(data) < len(found) or [r.length for r in found] != list(data[: len(found)]):
        return why("the positions may not be all of the axis", node) or None
    shape = shape_of(node.outputs[0])
    free = [axis for axis in range(rank) if axis not in used]
    if shape is None or any(shape[axis] != 1 for axis in free):
        return why("the result repeats what is gathered", node) or None
    return free


def _last_axis_dropped(tensor: gs.Tensor) -> Ramp | None:
    """Return the ramp of one component of the indices, ``[…, 1]``, without its last axis."""
    unsqueeze, rank = made_by(tensor, "Unsqueeze"), rank_of(tensor)
    if unsqueeze is None or rank is None or axes_of(unsqueeze) not in ([-1], [rank - 1]):
        return None
    return ramp_of(unsqueeze.inputs[0])


def ramp_of(tensor: gs.Tensor) -> Ramp | None:
    """Follow Unsqueeze, Expand and Identity back to a Range from 0 by 1."""
    node = made_by(tensor, "Range", "Unsqueeze", "Expand", "Identity")
    if node is None:
        return None
    if node.op == "Range":
        shape = shape_of(tensor)
        if scalar_of(node.inputs[0]) != 0 or scalar_of(node.inputs[2]) != 1 or not shape:
            return None
        return None if shape[0] is None else Ramp(0, 1, shape[0])
    inner, shape = ramp_of(node.inputs[0]), shape_of(tensor)
    if inner is None or shape is None:
        return None
    if node.op == "Unsqueeze":
        axes = axes_of(node)
        if axes is None:
            return None
        added = {axis % len(shape) for axis in axes}
        kept = [axis for axis in range(len(shape)) if axis not in added]
        return Ramp(kept[inner.axis], len(shape), inner.length)
    axis = inner.axis + len(shape) - inner.rank
    return Ramp(axis, len(shape), inner.length) if shape[axis] == inner.length else None
