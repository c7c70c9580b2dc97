"""Removes GatherND by ranges, which models write that compute masks by indexing with positions."""

from __future__ import annotations

import numpy as np

from coreai_onnx.passes.analysis.affine import AffineExpr, AffineTensor, affine_expr
from coreai_onnx.passes.analysis.affine_analysis import AffineAnalysis
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import (
    attribute_of,
    axes_of,
    is_standard,
    made_by,
    rank_of,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why


def gathers_of_ranges(graph: gs.Graph, why: Why) -> int:
    """GatherND by ranges over whole axes of the data → the data with axes of size 1.

    GatherND(x:[b, s], Concat(i:[b, 1, s, 1], j:[b, 1, s, 1])), i = 0 … b - 1, j = 0 … s - 1
    becomes     Unsqueeze(x, [1, 3])
    """
    edit, count, positions = Edit(graph), 0, AffineAnalysis(open_ranges=True)
    for node in graph.nodes:
        if not is_standard(node, "GatherND") or attribute_of(node, "batch_dims", 0) != 0:
            continue
        axes = _free_axes(node, positions, why)
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


def _free_axes(node: gs.Node, positions: AffineAnalysis, why: Why) -> list[int] | None:
    """Return the axes that the data lacks, if the indices are ranges over whole axes of it."""
    data, concat = shape_of(node.inputs[0]), made_by(node.inputs[1], "Concat")
    if data is None or concat is None:
        return None
    ranges = [_last_axis_dropped(tensor, positions) for tensor in concat.inputs]
    found = [one for one in ranges if one is not None]
    if len(found) < len(ranges):
        return None
    rank, used = len(found[0].dims), [one.steps.index(1) for one in found]
    if attribute_of(concat, "axis", 0) not in (-1, rank) or any(len(r.dims) != rank for r in found):
        return None
    if used != sorted(set(used)):
        why("the axes are gathered in another order", node)
        return None
    lengths = [one.dims[axis] for one, axis in zip(found, used, strict=True)]
    if None in lengths or lengths != [affine_expr(dim) for dim in data[: len(found)]]:
        why("the positions may not be all of the axis", node)
        return None
    shape = shape_of(node.outputs[0])
    free = [axis for axis in range(rank) if axis not in used]
    if shape is None or any(shape[axis] != 1 for axis in free):
        why("the result repeats what is gathered", node)
        return None
    return free


def _last_axis_dropped(tensor: gs.Tensor, positions: AffineAnalysis) -> AffineTensor | None:
    """Return one component of the indices, ``[…, 1]``, without its last axis, if it is a range."""
    unsqueeze, rank = made_by(tensor, "Unsqueeze"), rank_of(tensor)
    if unsqueeze is None or rank is None or axes_of(unsqueeze) not in ([-1], [rank - 1]):
        return None
    known = positions.of(unsqueeze.inputs[0])
    if not isinstance(known, AffineTensor) or known.start != AffineExpr(0):
        return None
    return known if sorted(known.steps) == [0] * (len(known.steps) - 1) + [1] else None
