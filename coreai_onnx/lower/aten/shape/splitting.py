"""Parts of a tensor: one element of an axis, ranges, lists of ranges, differences of ranges."""

from __future__ import annotations

from collections.abc import Sequence

from coreai_onnx.lower.aten.shape.combining import cat
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.tensors import ceil_div, floor_div, sliced
from coreai_onnx.lower.nodes.values import Dim, Value, dims_of, is_bool, rank_of, set_dims, wrap
from coreai_onnx.lower.walk.registry import lowers


# ---------------------------------------------------------------------- one range
@lowers("aten.select.int", "aten.select_copy.int")
def select(op: OpBuilder, self: Value, dim: int, index: Dim) -> Value:
    """self[..., index, ...], without the axis."""
    where = op.const(index) if isinstance(index, int) else op.dim(index)
    return op.Gather(self, where, axis=wrap(dim, rank_of(self)))


@lowers("aten.slice.Tensor", "aten.slice_copy.Tensor")
def slice_(
    op: OpBuilder,
    self: Value,
    dim: int = 0,
    start: Dim | None = None,
    end: Dim | None = None,
    step: int = 1,
) -> Value:
    """self[..., start:end:step, ...] by Python's rules."""
    return sliced(op, self, wrap(dim, rank_of(self)), start, end, step)


@lowers("aten.narrow.default", "aten.narrow_copy.default")
def narrow(op: OpBuilder, self: Value, dim: int, start: Dim, length: Dim) -> Value:
    """self[..., start:start + length, ...]."""
    axis = wrap(dim, rank_of(self))
    if isinstance(start, int) and start < 0:
        start = dims_of(self)[axis] + start
    return sliced(op, self, axis, start, start + length)


# ---------------------------------------------------------------------- all elements of an axis
@lowers("aten.unbind.int", "aten.unbind_copy.int")
def unbind(op: OpBuilder, self: Value, dim: int = 0) -> list[Value]:
    """self[..., i, ...] for every i of an axis."""
    axis = wrap(dim, rank_of(self))
    # The export fixes the number of results.
    parts = _equal_parts(op, self, axis, 1, len(op.scope.traced.result))
    return [op.squeeze(part, [axis]) for part in parts]


# ---------------------------------------------------------------------- lists of ranges
@lowers("aten.split.Tensor", "aten.split_copy.Tensor", "aten.unsafe_split.Tensor")
def split(op: OpBuilder, self: Value, split_size: Dim, dim: int = 0) -> list[Value]:
    """Ranges of split_size elements, the last one possibly shorter."""
    axis = wrap(dim, rank_of(self))
    return _equal_parts(op, self, axis, split_size, len(op.scope.traced.result))


@lowers("aten.chunk.default", "aten.unsafe_chunk.default")
def chunk(op: OpBuilder, self: Value, chunks: int, dim: int = 0) -> list[Value]:
    """At most ``chunks`` ranges of ceil(size / chunks) elements, the last one possibly shorter."""
    axis = wrap(dim, rank_of(self))
    size = dims_of(self)[axis]
    count = len(op.scope.traced.result)
    if size == 0:
        return [self] * count
    return _equal_parts(op, self, axis, ceil_div(size, chunks), count)


def _equal_parts(op: OpBuilder, x: Value, axis: int, length: Dim, count: int) -> list[Value]:
    """Return ``count`` ranges of ``length``; the last one has the remaining elements."""
    size = dims_of(x)[axis]
    if count == 1:
        return [x]
    if isinstance(size, int) and isinstance(length, int):
        lengths = [max(0, min(length, size - i * length)) for i in range(count)]
        return _parts(op, x, axis, lengths)
    # Slices, because Split would need the length of the last range.
    bounds = [length * i for i in range(count)]
    return [
        sliced(op, x, axis, start, None if i == count - 1 else start + length)
        for i, start in enumerate(bounds)
    ]


@lowers("aten.split.sizes", renamed={"split_sizes": "split_size"})
@lowers(
    "aten.split_with_sizes.default",
    "aten.split_with_sizes_copy.default",
    "aten.unsafe_split_with_sizes.default",
)
def split_with_sizes(
    op: OpBuilder, self: Value, split_sizes: Sequence[Dim], dim: int = 0
) -> list[Value]:
    """Ranges of the given lengths."""
    return _parts(op, self, wrap(dim, rank_of(self)), split_sizes)


def _parts(op: OpBuilder, x: Value, axis: int, lengths: Sequence[Dim]) -> list[Value]:
    """Return consecutive ranges of the given lengths."""
    if len(lengths) == 1:
        return [x]
    if not lengths:
        return []
    parts = list(op.Split(x, op.shape(lengths), axis=axis, _outputs=len(lengths)))
    dims = dims_of(x)
    for part, length in zip(parts, lengths, strict=True):
        set_dims(part, (*dims[:axis], length, *dims[axis + 1 :]))
    return parts


@lowers("aten.tensor_split.sections")
def tensor_split(op: OpBuilder, self: Value, sections: int, dim: int = 0) -> list[Value]:
    """``sections`` ranges, the first size % sections of them one element longer."""
    axis = wrap(dim, rank_of(self))
    size = dims_of(self)[axis]
    if isinstance(size, int):
        base, longer = divmod(size, sections)
        return _parts(op, self, axis, [base + (i < longer) for i in range(sections)])
    ends = [_ends_before(size, sections, i) for i in range(sections + 1)]
    return [sliced(op, self, axis, ends[i], ends[i + 1]) for i in range(sections)]


def _ends_before(size: Dim, sections: int, count: int) -> Dim:
    """Elements in the first ``count`` ranges: count * base + min(count, size % sections)."""
    if count in (0, sections):
        return 0 if count == 0 else size
    # sum of ceil((size - i) / sections) for i < count
    total: Dim = 0
    for i in range(count):
        total = total + floor_div(size - i + sections - 1, sections)
    return total


@lowers("aten.tensor_split.indices")
def tensor_split_indices(
    op: OpBuilder, self: Value, indices: Sequence[Dim], dim: int = 0
) -> list[Value]:
    """The ranges between indices, by Python's slice rules."""
    axis = wrap(dim, rank_of(self))
    starts: list[Dim | None] = [0, *indices]
    ends: list[Dim | None] = [*indices, None]
    return [sliced(op, self, axis, a, b) for a, b in zip(starts, ends, strict=True)]


# ---------------------------------------------------------------------- differences
@lowers("aten.diff.default")
def diff(
    op: OpBuilder,
    self: Value,
    n: int = 1,
    dim: int = -1,
    prepend: Value | None = None,
    append: Value | None = None,
) -> Value:
    """x[i + 1] - x[i], n times; for booleans, whether they differ."""
    axis = wrap(dim, rank_of(self))
    x = self
    # As in torch, n = 0 ignores them.
    if n > 0 and (prepend is not None or append is not None):
        x = cat(op, [part for part in (prepend, self, append) if part is not None], axis)
    for _ in range(n):
        size = dims_of(x)[axis]
        later, earlier = sliced(op, x, axis, 1, None), sliced(op, x, axis, 0, -1)
        dims = list(dims_of(x))
        dims[axis] = max(size - 1, 0) if isinstance(size, int) else size - 1
        x = op.Xor(later, earlier) if is_bool(x) else op.Sub(later, earlier)
        set_dims(x, dims)
    return x
