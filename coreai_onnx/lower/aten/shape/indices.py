"""Building blocks of lowerings: index tensors and sizes."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch

from coreai_onnx.export.compat.torch_names import FloorDiv
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Dim, Value, as_dim, dims_of, numel, set_dims

# 32 KiB of int64: it bounds what a tensor that one node can compute adds to a file.
LARGEST_CONSTANT = 4096
"""Maximum number of elements of a known tensor that is stored instead of computed."""
# As the end of a Slice, which is clamped to the size of the axis.
INT_MAX = 2**63 - 1


def positions(op: OpBuilder, count: Dim) -> Value:
    """Return 0, 1, …, count - 1 as a 1-D int64 value."""
    if isinstance(count, int) and count <= LARGEST_CONSTANT:
        return op.const(torch.arange(count))
    result = op.Range(op.const(0), op.dim(count), op.const(1))
    return set_dims(result, (count,))


def floor_div(a: Dim, b: Dim) -> Dim:
    """Return a // b of dims."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    # torch's FloorDiv, as in the sizes of exported programs, so that equal sizes are equal
    # expressions.
    return as_dim(FloorDiv(sympy.sympify(a), sympy.sympify(b)))


def ceil_div(a: Dim, b: Dim) -> Dim:
    """Return the quotient of dims rounded up."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    return floor_div(a + b - 1, b)


def resolved(dims: Sequence[Dim], size: Sequence[object]) -> list[Dim]:
    """Return the sizes of a view, with -1 inferred from the number of elements.

    Args:
        dims: Dims of the tensor.
        size: Requested sizes; one may be -1.
    """
    wanted = [as_dim(s) for s in size]
    if -1 not in wanted:
        return wanted
    hole = wanted.index(-1)
    rest = numel([d for i, d in enumerate(wanted) if i != hole])
    wanted[hole] = floor_div(numel(dims), rest)
    return wanted


def flat(op: OpBuilder, x: Value) -> Value:
    """Return ``x`` as a 1-D value."""
    return op.reshape(x, [numel(dims_of(x))])


def move_last(op: OpBuilder, x: Value, axis: int) -> Value:
    """Return ``x`` with an axis moved to the end."""
    rank = len(dims_of(x))
    return op.transpose(x, [i for i in range(rank) if i != axis] + [axis])


def move_back(op: OpBuilder, x: Value, axis: int, rank: int) -> Value:
    """Undo :func:`move_last`."""
    return op.transpose(x, [*range(axis), rank - 1, *range(axis, rank - 1)])


def reversed_along(op: OpBuilder, x: Value, axes: Sequence[int]) -> Value:
    """Return ``x`` with the order of elements along axes reversed."""
    if not axes:
        return x
    count = len(axes)
    # With a negative step, an end far below zero includes the first element.
    result = op.Slice(
        x, [-1] * count, op.const([-INT_MAX] * count), op.const(list(axes)), [-1] * count
    )
    return set_dims(result, dims_of(x))


def is_empty(dims: Sequence[Dim]) -> bool:
    """Whether a tensor of these dims is known to have no elements."""
    return 0 in dims


def constant_or_none(x: Value) -> torch.Tensor | None:
    """Return the tensor of a constant value, or None."""
    if x.const_value is None:
        return None
    # A copy, because torch warns about memory that is not writable.
    return torch.from_numpy(x.const_value.numpy().copy())


__all__ = [
    "INT_MAX",
    "LARGEST_CONSTANT",
    "ceil_div",
    "constant_or_none",
    "flat",
    "floor_div",
    "is_empty",
    "move_back",
    "move_last",
    "positions",
    "resolved",
    "reversed_along",
]
