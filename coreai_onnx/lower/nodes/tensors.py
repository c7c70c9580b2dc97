"""Building blocks of lowerings: constants, index tensors, sizes, slices and reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import sympy
import torch

from coreai_onnx.export.compat.torch_names import FloorDiv
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import (
    Dim,
    Value,
    as_dim,
    dims_of,
    dtype_of,
    is_static,
    numel,
    rank_of,
    real_part,
    set_dims,
    wrap_all,
)

Axes = Sequence[int] | int | None
"""Axes as torch gives them: one, several, or all."""
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


def strided_index(op: OpBuilder, size: Sequence[Dim], stride: Sequence[Dim], offset: Dim) -> Value:
    """Return offset + i * stride[0] + j * stride[1] + … for every [i, j, …] below ``size``."""
    parts = (*size, *stride, offset)
    if is_static(parts) and int(numel(size)) <= LARGEST_CONSTANT:
        total = torch.full([int(d) for d in size], int(offset))
        for axis, (n, s) in enumerate(zip(size, stride, strict=True)):
            steps = torch.arange(int(n)) * int(s)
            total += steps.reshape([-1] + [1] * (len(size) - 1 - axis))
        return op.const(total)
    index = op.dim(offset)
    for axis, (n, s) in enumerate(zip(size, stride, strict=True)):
        along = positions(op, n) if s == 1 else op.Mul(positions(op, n), op.dim(s))
        index = op.Add(index, op.unsqueeze(along, list(range(1, len(size) - axis))))
    return set_dims(index, tuple(size))


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
    sizes = [as_dim(s) for s in size]
    if -1 not in sizes:
        return sizes
    hole = sizes.index(-1)
    rest = numel([d for i, d in enumerate(sizes) if i != hole])
    sizes[hole] = floor_div(numel(dims), rest)
    return sizes


def flat(op: OpBuilder, x: Value) -> Value:
    """Return ``x`` as a 1-D value."""
    return op.reshape(x, [numel(dims_of(x))])


def move_last(op: OpBuilder, x: Value, axis: int) -> Value:
    """Return ``x`` with an axis moved to the end."""
    rank = len(dims_of(x))
    return op.transpose(x, [i for i in range(rank) if i != axis] + [axis])


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


def filled(op: OpBuilder, size: Sequence[Dim], value: Any, dtype: torch.dtype) -> Value:
    """Return a tensor filled with one value: stored if small, otherwise computed in the graph."""
    if dtype.is_complex:
        return op.expand(_pair(op, value, dtype), [*size, 2])
    if isinstance(value, sympy.Basic):
        return op.expand(op.cast(op.dim(value), dtype), size)
    if is_static(size) and int(numel(size)) <= LARGEST_CONSTANT:
        return op.const(torch.full([int(d) for d in size], value, dtype=dtype))
    if dtype == torch.bfloat16:  # ConstantOfShape has no kernel for it
        return op.cast(filled(op, size, value, torch.float32), dtype)
    one = ir.tensor(torch.full((1,), value, dtype=dtype))
    return set_dims(op.ConstantOfShape(op.shape(size), value=one), tuple(size))


def _pair(op: OpBuilder, value: Any, dtype: torch.dtype) -> Value:
    """Return the real and imaginary part of a number."""
    if isinstance(value, sympy.Basic):
        real = op.cast(op.dim(value), real_part(dtype))
        return set_dims(op.Mul(real, [1.0, 0.0]), (2,))
    return op.const(torch.view_as_real(torch.tensor(complex(value), dtype=dtype)))


def sliced(
    op: OpBuilder, x: Value, axis: int, start: Dim | None, end: Dim | None, step: int = 1
) -> Value:
    """Return ``x[start:end:step]`` along an axis; no node if it keeps everything."""
    size = dims_of(x)[axis]
    first: Dim = 0 if start is None else start
    last: Dim = INT_MAX if end is None or _at_least(end, size) else end
    if first == 0 and last == INT_MAX and step == 1:
        return x
    return op.slice(x, axis, first, last, step)


def _at_least(end: Dim, size: Dim) -> bool:
    """Whether an end is known to be at or beyond the end of the axis."""
    if end == size:
        return True
    return isinstance(end, int) and end >= (size if isinstance(size, int) else INT_MAX)


def reduced(op: OpBuilder, op_type: str, x: Value, axes: Axes, *, keepdim: bool) -> Value:
    """Return an ONNX reduction over axes; a 0-d tensor is returned unchanged."""
    rank = rank_of(x)
    if rank == 0:
        return x
    over = wrap_all(axes, rank)
    kept = [1 if i in over else d for i, d in enumerate(dims_of(x)) if keepdim or i not in over]
    if 0 in kept and is_static(kept):  # onnxruntime returns wrong sizes
        return op.const(torch.zeros([int(d) for d in kept], dtype=dtype_of(x)))
    operands = (x,) if len(over) == rank else (x, over)
    return op.node(op_type, *operands, keepdims=int(keepdim))


def reduced_count(x: Value, axes: Axes) -> Dim:
    """Return the number of elements that are reduced to each result."""
    dims = dims_of(x)
    return numel([dims[a] for a in wrap_all(axes, len(dims))])


def reduction_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which onnxruntime's scatter ops can reduce values of a dtype."""
    if dtype in (torch.float16, torch.bfloat16):
        return torch.float32
    return torch.int32 if dtype == torch.bool else dtype
