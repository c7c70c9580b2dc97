"""Distances and angles between vectors."""

from __future__ import annotations

import math

import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.inference import broadcast_dims
from coreai_onnx.lower.nodes.values import Value, dims_of, dtype_of
from coreai_onnx.lower.walk.registry import lowers

_BY_PRODUCT_IF_LARGE, _BY_PRODUCT = 0, 1
_LARGE = 25
"""torch's limit: with more rows, distances come from a matrix product, which rounds differently."""


@lowers("aten._cdist_forward.default")
def cdist_forward(op: OpBuilder, x1: Value, x2: Value, p: float, compute_mode: int | None) -> Value:
    """The p-norm of the difference of every row of x1 and every row of x2."""
    *lead1, rows, width = dims_of(x1)
    *lead2, columns, _ = dims_of(x2)
    if 0 in (rows, columns, width, *lead1, *lead2):
        lead = broadcast_dims(tuple(lead1), tuple(lead2))
        return op.expand(op.const(0, dtype_of(x1)), [*lead, rows, columns])
    large = any(isinstance(n, int) and n > _LARGE for n in (rows, columns))
    mode = compute_mode or _BY_PRODUCT_IF_LARGE
    if p == 2 and (mode == _BY_PRODUCT or (mode == _BY_PRODUCT_IF_LARGE and large)):
        return _by_product(op, x1, x2)
    return _norm(op, op.Sub(op.Unsqueeze(x1, [-2]), op.Unsqueeze(x2, [-3])), p)


@lowers("aten.pdist.default", "aten._pdist_forward.default")
def pdist(op: OpBuilder, self: Value, p: float = 2.0) -> Value:
    """The p-norms of the differences of all pairs of rows, in the order of the upper triangle."""
    rows, width = dims_of(self)
    if isinstance(rows, int):
        if rows < 2 or width == 0:
            count = rows * (rows - 1) // 2
            return op.expand(op.const(0, dtype_of(self)), [count])
        first, second = (op.const(i) for i in torch.triu_indices(rows, rows, 1).unbind())
    else:
        places = op.Range(0, op.dim(rows), 1)
        # NonZero lists the pairs row by row, in the order of torch.
        pairs = op.NonZero(op.Less(op.Unsqueeze(places, [1]), places))
        first, second = op.Gather(pairs, 0, axis=0), op.Gather(pairs, 1, axis=0)
    return _norm(op, op.Sub(op.Gather(self, first, axis=0), op.Gather(self, second, axis=0)), p)


def _by_product(op: OpBuilder, x1: Value, x2: Value) -> Value:
    """Return √(|a|² - 2 a·b + |b|²) as one product of extended rows, as torch does."""
    first, second = (op.ReduceSum(op.Mul(x, x), [-1], keepdims=1) for x in (x1, x2))
    ones1, ones2 = (op.Expand(op.like(n, 1), op.Shape(n)) for n in (first, second))
    left = op.Concat(op.Mul(x1, -2), first, ones1, axis=-1)
    right = op.Concat(x2, ones2, second, axis=-1)
    rank = len(dims_of(x2))
    swapped = op.Transpose(right, perm=[*range(rank - 2), rank - 1, rank - 2])
    # Rounding may make the square of a short distance negative.
    return op.Sqrt(op.Max(op.MatMul(left, swapped), 0))


def _norm(op: OpBuilder, x: Value, p: float) -> Value:
    """Return the p-norm over the last axis."""
    size = op.Abs(x)
    if p == 0:
        counted = op.cast(op.Not(op.Equal(x, 0)), dtype_of(x))
        result = op.ReduceSum(counted, [-1], keepdims=0)
    elif p == 1:
        result = op.ReduceSum(size, [-1], keepdims=0)
    elif p == 2:
        result = op.Sqrt(op.ReduceSum(op.Mul(x, x), [-1], keepdims=0))
    elif math.isinf(p):
        result = op.ReduceMax(size, [-1], keepdims=0)
    else:
        total = op.ReduceSum(op.Pow(size, op.like(x, p)), [-1], keepdims=0)
        result = op.Pow(total, op.like(x, 1 / p))
    return result
