"""Replaces a Gather whose indices are a range or one row."""

from __future__ import annotations

import numpy as np

from coreai_onnx.passes.analysis.affine import AffineExpr, AffineTensor, affine_expr
from coreai_onnx.passes.analysis.affine_analysis import AffineAnalysis
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites, set_input
from coreai_onnx.passes.engine.graphs import context_of
from coreai_onnx.passes.engine.match import (
    attribute_of,
    axes_of,
    behind,
    constant_of,
    dtype_of,
    is_standard,
    made_by,
    rank_of,
    same_known_shape,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why

_LARGEST = 1 << 20
"""Tables with more elements are not read."""


@rewrites("Gather")
def gathers_of_one_row(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Gather with equal indices, added to a tensor of its shape → the row.

    Gather(table:[2, 64], zeros:[b, s]) → r:[b, s, 64], Add(x:[b, s, 64], r)
    becomes     Add(x, table[0]:[64])

    For example the token type embeddings of an encoder, whose token type ids default to zeros.
    """
    positions = edit.once(AffineAnalysis)
    if attribute_of(node, "axis", 0) != 0:
        return False
    table, indices = node.inputs[0], positions.of(node.inputs[1])
    if not isinstance(table, gs.Constant) or not isinstance(indices, AffineTensor):
        return False
    index, rows = indices.splat, table.shape[0] if table.shape else 0
    # An index beyond the table is an error of the model, which onnxruntime reports at run time.
    if index is None or not node.inputs[1].shape or not -rows <= index < rows:
        return False
    if not all(_is_added(node.outputs[0], reader) for reader in node.outputs[0].outputs):
        return why("the rows must only be added to tensors of their shape", node)
    # After all other conditions, since this loads the table.
    values = constant_of(table, at_most=_LARGEST)
    if values is None or edit.is_output(node.outputs[0]):
        return why("the table is large, or the rows are an output", node)
    row = edit.constant(f"{table.name}_{index}", np.ascontiguousarray(values[index]))
    for reader in list(node.outputs[0].outputs):
        set_input(reader, list(reader.inputs).index(node.outputs[0]), row)
    edit.remove(node)
    return True


def _is_added(rows: gs.Tensor, reader: gs.Node) -> bool:
    """Whether a node adds the rows to a tensor of the same shape, so that one row broadcasts."""
    if not is_standard(reader, "Add"):
        return False
    others = [tensor for tensor in reader.inputs if tensor is not rows]
    return len(others) == 1 and same_known_shape(others[0], rows)


@rewrites("Squeeze")
def gathers_of_parts(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Gather of each part of the last axis, moved to the front → Split.

    Reshape(y:[…, 3 * n]) → […, 3, n], moved to [3, …, n], Gather(0), Gather(1), Gather(2)
    becomes     Split(y, axis = -1)

    torch.nn.MultiheadAttention separates the results of its packed projection in this way.
    """
    transpose = made_by(node.inputs[0], "Transpose")
    unsqueeze = None if transpose is None else made_by(transpose.inputs[0], "Unsqueeze")
    reshape = None if unsqueeze is None else made_by(unsqueeze.inputs[0], "Reshape")
    if transpose is None or unsqueeze is None or reshape is None:
        return False
    source, dims = reshape.inputs[0], shape_of(reshape.outputs[0]) or ()
    rank, shape = len(dims), shape_of(source) or ()
    swapped = [rank - 1, *range(1, rank - 1), 0, rank]
    if attribute_of(transpose, "perm", None) != swapped or axes_of(unsqueeze) != [0]:
        return False
    if [axis % (rank + 1) for axis in axes_of(node) or ()] != [rank - 1]:
        return False
    count, width = dims[-2:]
    if not (isinstance(count, int) and isinstance(width, int)):
        return why("the last axis is not known to be split in parts", node)
    if None in dims or (*dims[:-2], count * width) != shape:
        return why("more than the last axis may be reshaped", node)
    gathers = list(node.outputs[0].outputs)
    places = [place for one in gathers if (place := _place(one, count)) is not None]
    if edit.is_output(node.outputs[0]) or len(places) != len(gathers):
        return why("something else than a Gather of one part reads it", node)
    sizes = edit.constant(f"{node.name}_sizes", np.full(count, width, np.int64))
    names = context_of(edit.graph).names
    part = [*dims[:-2], width]
    parts = [
        gs.Variable(names.claim(f"{node.name}_part"), dtype_of(source), part) for _ in range(count)
    ]
    edit.node("Split", node, [source, sizes], outputs=parts, axis=rank - 2)
    for gather, place in zip(gathers, places, strict=True):
        edit.become(gather, "Identity", [parts[place]])
    return True


def _place(gather: gs.Node, count: int) -> int | None:
    """Return the index of one of ``count`` parts on the first axis that a Gather takes."""
    if not is_standard(gather, "Gather") or attribute_of(gather, "axis", 0) != 0:
        return None
    index = constant_of(gather.inputs[1], at_most=1) if rank_of(gather.inputs[1]) == 0 else None
    return int(index) if index is not None and -count <= index < count else None


@rewrites()
def gathers_of_ranges(edit: Edit, node: gs.Node, why: Why) -> bool:
    """GatherND by ranges over whole axes of the data → the data with axes of size 1.

    GatherND(x:[b, s], Concat(i:[b, 1, s, 1], j:[b, 1, s, 1])), i = 0 … b - 1, j = 0 … s - 1
    becomes     Unsqueeze(x, [1, 3])
    """
    # The declared length of a Range is enough: it is compared with a dim of the data below.
    positions = edit.once(AffineAnalysis, open_ranges=True)
    if not is_standard(node, "GatherND") or attribute_of(node, "batch_dims", 0) != 0:
        return False
    axes = _free_axes(node, positions, why)
    if axes is None:
        return False
    constant = edit.constant(f"{node.outputs[0].name}_axes", np.array(axes, np.int64))
    if axes:
        edit.become(node, "Unsqueeze", [node.inputs[0], constant])
    else:
        edit.become(node, "Identity", [node.inputs[0]])
    return True


def _free_axes(node: gs.Node, positions: AffineAnalysis, why: Why) -> list[int] | None:
    """Return the axes that the data lacks, if the indices are ranges over whole axes of it."""
    data, concat = shape_of(node.inputs[0]), made_by(behind(node.inputs[1], "Cast"), "Concat")
    if data is None or concat is None:
        return None
    ranges = [_last_axis_dropped(tensor, positions) for tensor in concat.inputs]
    spans = [one for one in ranges if one is not None]
    if len(spans) < len(ranges):
        return None
    rank, used = len(spans[0].dims), [one.steps.index(1) for one in spans]
    if attribute_of(concat, "axis", 0) not in (-1, rank) or any(len(r.dims) != rank for r in spans):
        return None
    if used != sorted(set(used)):
        why("the axes are gathered in another order", node)
        return None
    lengths = [one.dims[axis] for one, axis in zip(spans, used, strict=True)]
    if None in lengths or lengths != [affine_expr(dim) for dim in data[: len(spans)]]:
        why("the positions may not cover the axis", node)
        return None
    shape = shape_of(node.outputs[0])
    free = [axis for axis in range(rank) if axis not in used]
    if shape is None or any(shape[axis] != 1 for axis in free):
        why("the result repeats the gathered elements", node)
        return None
    return free


def _last_axis_dropped(tensor: gs.Tensor, positions: AffineAnalysis) -> AffineTensor | None:
    """Return one component of the indices, ``[…, 1]``, without its last axis, if it is a range."""
    unsqueeze, rank = made_by(tensor, "Unsqueeze"), rank_of(tensor)
    if unsqueeze is None or rank is None or axes_of(unsqueeze) not in ([-1], [rank - 1]):
        return None
    affine = positions.of(unsqueeze.inputs[0])
    if not isinstance(affine, AffineTensor) or affine.start != AffineExpr(0):
        return None
    return affine if sorted(affine.steps) == [0] * (len(affine.steps) - 1) + [1] else None
