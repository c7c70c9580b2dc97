"""Building blocks of algorithms on batches of matrices: columns, identities, triangular solves.

float32 matrices are processed in float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.loops import repeat
from coreai_onnx.lower.nodes.tensors import positions
from coreai_onnx.lower.nodes.values import Dim, Value, dims_of, set_dims


def wide(op: OpBuilder, x: Value) -> Value:
    """Return ``x`` in float64."""
    return op.cast(x, torch.float64)


def mask(op: OpBuilder, condition: Value) -> Value:
    """Return 1.0 where a condition holds, else 0.0, in float64."""
    return op.cast(condition, torch.float64)


def identity(op: OpBuilder, rows: Dim, columns: Dim) -> Value:
    """Return ones on the diagonal of a matrix of zeros, in float64."""
    left, right = op.unsqueeze(positions(op, rows), [1]), op.unsqueeze(positions(op, columns), [0])
    return set_dims(mask(op, op.Equal(left, right)), (rows, columns))


def column(op: OpBuilder, x: Value, k: Value) -> Value:
    """Return column k of matrices as a matrix of one column."""
    dims = dims_of(x)
    taken = op.Gather(x, op.Reshape(k, [1]), axis=len(dims) - 1)
    return set_dims(taken, (*dims[:-1], 1))


def row(op: OpBuilder, x: Value, k: Value) -> Value:
    """Return row k of matrices as a matrix of one row."""
    dims = dims_of(x)
    taken = op.Gather(x, op.Reshape(k, [1]), axis=len(dims) - 2)
    return set_dims(taken, (*dims[:-2], 1, dims[-1]))


def transposed(op: OpBuilder, x: Value) -> Value:
    """Return matrices with rows and columns exchanged."""
    dims = dims_of(x)
    rank = len(dims)
    turned = op.transpose(x, [*range(rank - 2), rank - 1, rank - 2])
    return set_dims(turned, (*dims[:-2], dims[-1], dims[-2]))


def broadcast_batches(op: OpBuilder, *matrices: Value) -> list[Value]:
    """Return matrices broadcast to a common batch shape."""
    batch = common_batch(*(dims_of(m)[:-2] for m in matrices))
    return [op.expand(m, [*batch, *dims_of(m)[-2:]]) for m in matrices]


def common_batch(*batches: Sequence[Dim]) -> list[Dim]:
    """Return the shape that batch shapes broadcast to."""
    rank = max(len(b) for b in batches)
    padded = [[1] * (rank - len(b)) + list(b) for b in batches]
    # The export has checked that sizes match: the first one that is not 1 is the common one.
    return [next((d for d in ds if d != 1), 1) for ds in zip(*padded, strict=True)]


def diagonal(op: OpBuilder, x: Value) -> Value:
    """Return the diagonal of square matrices."""
    dims = dims_of(x)
    # ONNX has no op that reads a diagonal.
    ones = identity(op, dims[-2], dims[-1])
    kept = op.Where(op.cast(ones, torch.bool), x, op.like(x, 0))
    return set_dims(op.ReduceSum(kept, [len(dims) - 1], keepdims=0), dims[:-1])


def solve_triangular(
    op: OpBuilder, a: Value, b: Value, *, upper: bool, unit: bool = False
) -> Value:
    """Return X of A X = B by substitution, for float64 matrices of one batch shape.

    Args:
        op: Creates the loop over the rows.
        a: Square matrices; only a triangle is read.
        b: Right-hand sides.
        upper: Whether the upper triangle is read.
        unit: Whether the diagonal is taken as ones.
    """
    size = dims_of(a)[-1]
    rows = op.unsqueeze(positions(op, size), [1])

    def step(op: OpBuilder, number: Value, state: list[Value]) -> list[Value]:
        (x,) = state
        k = op.Sub(op.Sub(op.dim(size), 1), number) if upper else number
        factors = column(op, a, k)
        solved = row(op, x, k)
        if not unit:
            solved = op.Div(solved, row(op, factors, k))
        left = op.Less(rows, k) if upper else op.Greater(rows, k)
        rest = op.Sub(x, op.Mul(op.Where(left, factors, op.like(x, 0)), solved))
        return [op.Where(op.Equal(rows, k), solved, rest)]

    return repeat(op, size, [b], step)[0]


def expand_info(op: OpBuilder, batch: Sequence[Dim]) -> Value:
    """Return int64 zeros, one per matrix."""
    return set_dims(op.expand(op.const(0), list(batch)), tuple(batch))
