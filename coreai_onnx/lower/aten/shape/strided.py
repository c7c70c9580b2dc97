"""Overlapping and diagonal views, by index arithmetic on the flattened elements."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch

from coreai_onnx.errors import LoweringError
from coreai_onnx.export.compat.torch_names import Max, Min
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.tensors import (
    flat,
    floor_div,
    move_last,
    positions,
    strided_index,
)
from coreai_onnx.lower.nodes.values import (
    Dim,
    Value,
    as_dim,
    dims_of,
    is_static,
    numel,
    set_dims,
    wrap,
)
from coreai_onnx.lower.walk.registry import lowers


# ---------------------------------------------------------------------- windows
@lowers("aten.unfold.default", "aten.unfold_copy.default")
def unfold(op: OpBuilder, self: Value, dimension: int, size: int, step: int) -> Value:
    """All windows of an axis: the axis counts windows, a new last axis holds their elements."""
    dims = dims_of(self)
    if not dims:
        return op.slice(op.reshape(self, [1]), 0, 0, size)
    axis = wrap(dimension, len(dims))
    count = floor_div(dims[axis] - size, step) + 1
    starts = op.unsqueeze(positions(op, count), [1])
    if step != 1:
        starts = op.Mul(starts, step)
    windows = op.Gather(self, op.Add(starts, op.const(torch.arange(size))), axis=axis)
    set_dims(windows, (*dims[:axis], count, size, *dims[axis + 1 :]))
    return move_last(op, windows, axis + 1)


# ---------------------------------------------------------------------- strides
@lowers("aten.as_strided.default", "aten.as_strided_copy.default")
def as_strided(
    op: OpBuilder,
    self: Value,
    size: Sequence[Dim],
    stride: Sequence[Dim],
    storage_offset: Dim | None = None,
) -> Value:
    """Element [i, j, …] is the one at storage_offset + i * stride[0] + j * stride[1] + … ."""
    storage, base = _storage(op, self)
    offset = as_dim((base if storage_offset is None else storage_offset) - base)
    count = dims_of(storage)[0]
    # The elements are in order: no index is needed.
    if offset == 0 and numel(size) == count and list(stride) == _contiguous_strides(size):
        return op.reshape(storage, size)
    steps = [(n - 1) * s for n, s in zip(size, stride, strict=True)]
    if 0 not in size and is_static((offset, count, *steps)):
        last = int(offset) + sum(int(step) for step in steps)
        # The view has elements outside of the input.
        if int(offset) < 0 or last >= int(count):
            raise _hidden_storage(op)
    index = strided_index(op, size, stride, offset)
    return op.Gather(storage, index, axis=0)


@lowers("aten.resize.default")
def resize(
    op: OpBuilder,
    self: Value,
    size: Sequence[Dim],
    *,
    memory_format: torch.memory_format | None = None,
) -> Value:
    """The elements in the order of their storage; zeros where torch leaves memory uninitialized.

    The input is not a part of a larger storage: torch functionalizes ``resize_`` of such a view.
    """
    if memory_format not in (None, torch.contiguous_format):
        raise LoweringError(
            f"aten.resize.default: memory_format={memory_format} has no lowering",
            op.scope.where,
            "call .contiguous(memory_format=...) on the result instead",
        )
    storage, _ = _storage(op, self)
    present, count = dims_of(storage)[0], numel(size)
    missing = as_dim(Max(sympy.Integer(0), sympy.sympify(count - present)))
    if missing != 0:
        storage = op.Pad(storage, op.shape([0, missing]))
    if present != count:
        storage = op.slice(storage, 0, 0, count)
    return op.reshape(storage, size)


def _storage(op: OpBuilder, x: Value) -> tuple[Value, Dim]:
    """Return the elements of ``x`` in the order of its storage, and the offset of the first one.

    Raises:
        LoweringError: If ``x`` is a part of a larger storage, whose other elements are unavailable.
    """
    example = op.scope.traced.inputs[0]
    base = as_dim(example.storage_offset())
    if example.is_contiguous():
        return flat(op, x), base
    strides = [as_dim(s) for s in example.stride()]
    # An expanded axis has a single element in its storage.
    for axis in [i for i, s in enumerate(strides) if s == 0]:
        x = op.slice(x, axis, 0, 1)
    dims = dims_of(x)
    if not is_static((*dims, *strides)):
        raise _hidden_storage(op)
    # Axes by descending stride are in the order of the storage.
    order = sorted(range(len(dims)), key=lambda i: (-int(strides[i]), i))
    # The stride of an axis of size 1 has no effect.
    inner = [i for i in order if dims[i] != 1]
    expected = _contiguous_strides([dims[i] for i in inner])
    if [strides[i] for i in inner] != expected:
        raise _hidden_storage(op)
    return flat(op, op.transpose(x, order)), base


def _hidden_storage(op: OpBuilder) -> LoweringError:
    return LoweringError(
        f"{op.scope.traced.op}: reads a storage of which its input is only a part",
        op.scope.where,
        "call .contiguous() on the input first",
    )


def _contiguous_strides(size: Sequence[Dim]) -> list[Dim]:
    return [numel(size[i + 1 :]) for i in range(len(size))]


# ---------------------------------------------------------------------- diagonals
@lowers("aten.diagonal.default", "aten.diagonal_copy.default")
def diagonal(op: OpBuilder, self: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """self[..., i, ..., i + offset, ...] in a new last axis."""
    dims = dims_of(self)
    first, second = wrap(dim1, len(dims)), wrap(dim2, len(dims))
    rest = [i for i in range(len(dims)) if i not in (first, second)]
    rows, columns = dims[first], dims[second]
    count = diagonal_length(rows, columns, offset)
    matrix = op.transpose(self, [*rest, first, second])
    batch = [dims[i] for i in rest]
    elements = op.reshape(matrix, [*batch, as_dim(rows * columns)])
    start = offset if offset >= 0 else as_dim(-offset * columns)
    index = strided_index(op, [count], [as_dim(columns + 1)], start)
    return op.Gather(elements, index, axis=len(batch))


def diagonal_length(rows: Dim, columns: Dim, offset: int) -> Dim:
    """Return the number of elements of a diagonal."""
    if offset >= 0:
        columns = columns - offset
    else:
        rows = rows + offset
    if isinstance(rows, int) and isinstance(columns, int):
        return max(0, min(rows, columns))
    shorter = Min(sympy.sympify(rows), sympy.sympify(columns))
    return as_dim(Max(sympy.Integer(0), shorter))
