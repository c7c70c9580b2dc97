"""Concatenation, repetition, reversal and reordering of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch

from coreai_onnx.export.compat.torch_names import PythonMod
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.tensors import flat, reversed_along
from coreai_onnx.lower.nodes.values import (
    Dim,
    Value,
    as_dim,
    dims_of,
    dtype_of,
    ir_dtype_of,
    rank_of,
    set_dims,
    wrap,
    wrap_all,
)
from coreai_onnx.lower.walk.registry import lowers


# ---------------------------------------------------------------------- concatenation
@lowers("aten.cat.default", "aten.concat.default", "aten.concatenate.default", "prims.cat.default")
def cat(op: OpBuilder, tensors: Sequence[Value], dim: int = 0) -> Value:
    """The concatenation of tensors along an axis; empty 1-D tensors are ignored."""
    ranks = {rank_of(t) for t in tensors}
    kept = [t for t in tensors if dims_of(t) != (0,)] if len(ranks) > 1 else list(tensors)
    values = _one_dtype(op, tensors, kept)
    if len(values) == 1:
        return values[0]
    return op.Concat(*values, axis=wrap(dim, rank_of(values[0])))


@lowers("aten.stack.default", "aten._stack.default")
def stack(op: OpBuilder, tensors: Sequence[Value], dim: int = 0) -> Value:
    """The concatenation of tensors along a new axis."""
    axis = wrap(dim, rank_of(tensors[0]) + 1)
    values = [op.unsqueeze(t, [axis]) for t in _one_dtype(op, tensors, tensors)]
    return values[0] if len(values) == 1 else op.Concat(*values, axis=axis)


def _one_dtype(op: OpBuilder, tensors: Sequence[Value], kept: Sequence[Value]) -> list[Value]:
    """Return the kept tensors in the promoted dtype of all tensors, 0-d ones included."""
    dtype = dtype_of(tensors[0])
    for t in tensors:
        dtype = torch.promote_types(dtype, dtype_of(t))
    return [op.cast(t, dtype) for t in kept]


@lowers("aten.block_diag.default")
def block_diag(op: OpBuilder, tensors: Sequence[Value]) -> Value:
    """Matrices along a diagonal, zeros elsewhere; vectors are rows."""
    blocks = [_as_matrix(op, t) for t in _one_dtype(op, tensors, tensors)]
    width = as_dim(sum(dims_of(b)[1] for b in blocks))
    rows = []
    before: Dim = 0
    for block in blocks:
        after = as_dim(width - before - dims_of(block)[1])
        pads = op.shape([0, before, 0, after])
        rows.append(op.Pad(block, pads))
        before = as_dim(before + dims_of(block)[1])
    return rows[0] if len(rows) == 1 else op.Concat(*rows, axis=0)


def _as_matrix(op: OpBuilder, x: Value) -> Value:
    rank = rank_of(x)
    return op.unsqueeze(x, list(range(2 - rank))) if rank < 2 else x


# ---------------------------------------------------------------------- repetition
@lowers("aten.repeat.default")
def repeat(op: OpBuilder, self: Value, repeats: Sequence[Dim]) -> Value:
    """self repeated along each axis, with new axes in front."""
    dims = dims_of(self)
    lead = len(repeats) - len(dims)
    x = op.unsqueeze(self, list(range(lead)))
    dims = (1,) * lead + dims
    if all(r == 1 for r in repeats):
        return x
    if all(r == 1 or d == 1 for r, d in zip(repeats, dims, strict=True)):
        return op.expand(x, [d if r == 1 else r for r, d in zip(repeats, dims, strict=True)])
    return op.Tile(x, op.shape(repeats))


@lowers("aten.tile.default")
def tile(op: OpBuilder, self: Value, dims: Sequence[Dim]) -> Value:
    """self repeated along each of its last axes."""
    return repeat(op, self, [*[1] * (rank_of(self) - len(dims)), *dims])


@lowers("aten.repeat_interleave.self_int")
def repeat_interleave(op: OpBuilder, self: Value, repeats: Dim, dim: int | None = None) -> Value:
    """Each element of an axis repeated in place."""
    x, axis = _along(op, self, dim)
    dims = dims_of(x)
    copies = op.expand(op.unsqueeze(x, [axis + 1]), [*dims[: axis + 1], repeats, *dims[axis + 1 :]])
    return op.reshape(copies, [*dims[:axis], as_dim(dims[axis] * repeats), *dims[axis + 1 :]])


@lowers("aten.repeat_interleave.self_Tensor")
def repeat_interleave_each(
    op: OpBuilder, self: Value, repeats: Value, dim: int | None = None
) -> Value:
    """Element i of an axis repeated repeats[i] times in place."""
    x, axis = _along(op, self, dim)
    counts = op.expand(flat(op, repeats), [dims_of(x)[axis]])
    return op.Gather(x, repeat_interleave_index(op, counts), axis=axis)


@lowers("aten.repeat_interleave.Tensor")
def repeat_interleave_index(op: OpBuilder, repeats: Value) -> Value:
    """Every index i, repeats[i] times."""
    if dims_of(repeats) == (0,):
        return op.const([], torch.int64)
    wide = op.cast(repeats, torch.int64)
    most = op.ReduceMax(wide, keepdims=0)
    # Row i of a mask has as many true elements as index i has repetitions; NonZero lists them.
    slots = op.Range(op.const(0), most, op.const(1))
    taken = op.Less(op.unsqueeze(slots, [0]), op.unsqueeze(wide, [1]))
    rows = op.Gather(op.NonZero(taken), op.const(0), axis=0)
    return op.cast(rows, ir_dtype_of(repeats))


def _along(op: OpBuilder, x: Value, dim: int | None) -> tuple[Value, int]:
    """Return the tensor and the axis to work on; without an axis, all elements in one."""
    if dim is None or rank_of(x) == 0:
        return flat(op, x), 0
    return x, wrap(dim, rank_of(x))


# ---------------------------------------------------------------------- reordering
@lowers("prims.rev.default", renamed={"self": "a"})
@lowers("aten.flip.default")
def flip(op: OpBuilder, self: Value, dims: Sequence[int]) -> Value:
    """self with the elements of axes in reverse order."""
    return reversed_along(op, self, wrap_all(dims, rank_of(self)) if dims else [])


@lowers("aten.roll.default")
def roll(
    op: OpBuilder, self: Value, shifts: Sequence[Dim] | Dim, dims: Sequence[int] | int = ()
) -> Value:
    """self with elements shifted along axes, with wraparound."""
    moves = list(shifts) if isinstance(shifts, Sequence) else [shifts]
    axes = list(dims) if isinstance(dims, Sequence) else [dims]
    if not axes:
        # Without axes, torch rolls the flattened tensor.
        moved = _rolled(op, flat(op, self), 0, moves[0])
        return op.reshape(moved, dims_of(self))
    for shift, axis in zip(moves, axes, strict=True):
        self = _rolled(op, self, wrap(axis, rank_of(self)), shift)
    return self


def _rolled(op: OpBuilder, x: Value, axis: int, shift: Dim) -> Value:
    dims = dims_of(x)
    if not dims or dims[axis] == 0:
        return x
    size = dims[axis]
    turn: Dim
    if isinstance(size, int) and isinstance(shift, int):
        turn = shift % size
    else:
        # PythonMod, because a shift may be negative.
        turn = as_dim(PythonMod(sympy.sympify(shift), sympy.sympify(size)))
    if turn == 0:
        return x
    cut = as_dim(size - turn)
    tail = op.slice(x, axis, cut, as_dim(size))
    head = op.slice(x, axis, 0, cut)
    return set_dims(op.Concat(tail, head, axis=axis), dims)


# ---------------------------------------------------------------------- products of axes
@lowers("aten.meshgrid.default", "aten.meshgrid.indexing")
def meshgrid(op: OpBuilder, tensors: Sequence[Value], *, indexing: str = "ij") -> list[Value]:
    """Each vector along an axis of its own, the first two exchanged for "xy", and repeated."""
    vectors = [flat(op, t) for t in tensors]
    grid = [dims_of(v)[0] for v in vectors]
    rank = len(grid)
    if rank < 2:
        return vectors
    grids = [
        op.expand(op.unsqueeze(v, [j for j in range(rank) if j != i]), grid)
        for i, v in enumerate(vectors)
    ]
    return [op.transpose(g, [1, 0, *range(2, rank)]) for g in grids] if indexing == "xy" else grids
