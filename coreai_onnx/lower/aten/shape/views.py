"""Views: the same elements with other sizes or another order of axes."""

from __future__ import annotations

from collections.abc import Sequence

from coreai_onnx.lower.aten.shape.indices import flat, floor_div, resolved
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Dim, Value, dims_of, numel, rank_of, wrap
from coreai_onnx.lower.walk.registry import lowers


# ---------------------------------------------------------------------- sizes
@lowers(
    "aten.view.default",
    "aten.view_copy.default",
    "aten._unsafe_view.default",
    "aten._reshape_copy.default",
)
def view(op: OpBuilder, self: Value, size: Sequence[Dim]) -> Value:
    """self with other sizes; -1 is what is left."""
    return op.reshape(self, resolved(dims_of(self), size))


@lowers("aten.reshape.default")
def reshape(op: OpBuilder, self: Value, shape: Sequence[Dim]) -> Value:
    """self with other sizes; -1 is what is left."""
    return view(op, self, shape)


@lowers("prims.reshape.default")
def prims_reshape(op: OpBuilder, a: Value, shape: Sequence[Dim]) -> Value:
    """a with other sizes."""
    return view(op, a, shape)


@lowers("aten._reshape_alias.default")
def reshape_alias(op: OpBuilder, self: Value, size: Sequence[Dim]) -> Value:
    """self with other sizes; the strides are those of a reshape."""
    return view(op, self, size)


@lowers("aten.view_as.default", "aten.reshape_as.default")
def view_as(op: OpBuilder, self: Value, other: Value) -> Value:
    """self with the sizes of other."""
    return op.reshape(self, dims_of(other))


@lowers("aten.ravel.default")
def ravel(op: OpBuilder, self: Value) -> Value:
    """self flattened to one axis."""
    return flat(op, self)


def _merged(op: OpBuilder, x: Value, first: int, last: int) -> Value:
    """Return ``x`` with the axes first … last as one."""
    dims = dims_of(x)
    if not dims:
        return op.reshape(x, [1])
    first, last = wrap(first, len(dims)), wrap(last, len(dims))
    merged = numel(dims[first : last + 1])
    return op.reshape(x, [*dims[:first], merged, *dims[last + 1 :]])


@lowers("aten.flatten.using_ints")
def flatten(op: OpBuilder, self: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    """self with the axes start_dim … end_dim as one."""
    return _merged(op, self, start_dim, end_dim)


@lowers("prims.collapse.default", "prims.collapse_view.default")
def collapse(op: OpBuilder, a: Value, start: int, end: int) -> Value:
    """a with the axes start … end as one."""
    return _merged(op, a, start, end)


@lowers("aten.unflatten.int")
def unflatten(op: OpBuilder, self: Value, dim: int, sizes: Sequence[Dim]) -> Value:
    """self with one axis split into several."""
    dims = dims_of(self)
    dim = wrap(dim, len(dims))
    parts = resolved([dims[dim]], sizes)
    return op.reshape(self, [*dims[:dim], *parts, *dims[dim + 1 :]])


@lowers("prims.split_dim.default")
def split_dim(op: OpBuilder, a: Value, dim: int, outer_length: Dim) -> Value:
    """a with one axis split into two, the outer one of the given length."""
    inner = floor_div(dims_of(a)[dim], outer_length)
    return unflatten(op, a, dim, [outer_length, inner])


@lowers("aten.squeeze.default", "aten.squeeze_copy.default")
def squeeze(op: OpBuilder, self: Value) -> Value:
    """self without the axes of size 1."""
    return _squeezed(op, self, range(rank_of(self)))


@lowers("aten.squeeze.dim", "aten.squeeze_copy.dim")
def squeeze_dim(op: OpBuilder, self: Value, dim: int) -> Value:
    """self without an axis if it has size 1."""
    return _squeezed(op, self, [dim])


@lowers("aten.squeeze.dims", "aten.squeeze_copy.dims")
def squeeze_dims(op: OpBuilder, self: Value, dim: Sequence[int]) -> Value:
    """self without those of the given axes that have size 1."""
    return _squeezed(op, self, dim)


@lowers("prims.squeeze.default")
def prims_squeeze(op: OpBuilder, a: Value, dimensions: Sequence[int]) -> Value:
    """a without the given axes."""
    return _squeezed(op, a, dimensions)


def _squeezed(op: OpBuilder, x: Value, axes: Sequence[int]) -> Value:
    """Drop axes of static size 1; the exported program assumes that symbolic sizes are not 1."""
    dims = dims_of(x)
    if not dims:
        return x
    gone = sorted({wrap(a, len(dims)) for a in axes if dims[a] == 1})
    return op.squeeze(x, gone)


@lowers("aten.unsqueeze.default", "aten.unsqueeze_copy.default")
def unsqueeze(op: OpBuilder, self: Value, dim: int) -> Value:
    """self with a new axis of size 1."""
    return op.unsqueeze(self, [wrap(dim, rank_of(self) + 1)])


@lowers("aten.expand.default", "aten.expand_copy.default")
def expand(op: OpBuilder, self: Value, size: Sequence[Dim]) -> Value:
    """self repeated along axes of size 1; -1 keeps a size."""
    return _expanded(op, self, size)


@lowers("aten.broadcast_to.default")
def broadcast_to(op: OpBuilder, self: Value, size: Sequence[Dim]) -> Value:
    """self repeated along axes of size 1."""
    return _expanded(op, self, size)


@lowers("aten.expand_as.default")
def expand_as(op: OpBuilder, self: Value, other: Value) -> Value:
    """self repeated along axes of size 1 to the sizes of other."""
    return op.expand(self, dims_of(other))


def _expanded(op: OpBuilder, x: Value, size: Sequence[Dim]) -> Value:
    dims = dims_of(x)
    lead = len(size) - len(dims)
    wanted = [dims[i - lead] if s == -1 else s for i, s in enumerate(size)]
    return op.expand(x, wanted)


@lowers("prims.broadcast_in_dim.default")
def broadcast_in_dim(
    op: OpBuilder, a: Value, shape: Sequence[Dim], broadcast_dimensions: Sequence[int]
) -> Value:
    """a with its axes at the given positions of a shape, repeated along the other axes."""
    added = [i for i in range(len(shape)) if i not in broadcast_dimensions]
    return op.expand(op.unsqueeze(a, added), shape)


# ---------------------------------------------------------------------- order of axes
@lowers("aten.permute.default", "aten.permute_copy.default")
def permute(op: OpBuilder, self: Value, dims: Sequence[int]) -> Value:
    """self with its axes in another order."""
    return op.transpose(self, [wrap(d, len(dims)) for d in dims])


@lowers("prims.transpose.default")
def prims_transpose(op: OpBuilder, a: Value, permutation: Sequence[int]) -> Value:
    """a with its axes in another order."""
    return permute(op, a, permutation)


@lowers("aten.transpose.int", "aten.transpose_copy.int", "aten.swapdims.default")
def transpose(op: OpBuilder, self: Value, dim0: int, dim1: int) -> Value:
    """self with two axes exchanged."""
    rank = rank_of(self)
    order = list(range(rank))
    # torch accepts axes 0 and -1 of a 0-d tensor, which has none.
    if rank:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return op.transpose(self, order)


@lowers("aten.swapaxes.default")
def swapaxes(op: OpBuilder, self: Value, axis0: int, axis1: int) -> Value:
    """self with two axes exchanged."""
    return transpose(op, self, axis0, axis1)


@lowers("aten.t.default", "aten.t_copy.default", "aten.numpy_T.default")
def reversed_axes(op: OpBuilder, self: Value) -> Value:
    """self with its axes in reverse order."""
    return op.transpose(self, list(reversed(range(rank_of(self)))))


@lowers("aten.mT.default", "aten.mH.default", "aten.adjoint.default", "aten.matrix_H.default")
def matrix_transpose(op: OpBuilder, self: Value) -> Value:
    """self with the last two axes exchanged."""
    return transpose(op, self, -2, -1)
