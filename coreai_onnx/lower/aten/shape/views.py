"""Views: the same elements with other sizes or another order of axes."""

from __future__ import annotations

from collections.abc import Sequence

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.tensors import flat, floor_div, resolved
from coreai_onnx.lower.nodes.values import Dim, Value, dims_of, numel, rank_of, wrap
from coreai_onnx.lower.walk.registry import lowers


# ---------------------------------------------------------------------- sizes
@lowers("prims.reshape.default", renamed={"self": "a", "size": "shape"})
@lowers("aten.reshape.default", renamed={"size": "shape"})
@lowers(
    "aten.view.default",
    "aten.view_copy.default",
    "aten._unsafe_view.default",
    "aten._reshape_alias.default",
    "aten._reshape_copy.default",
)
def view(op: OpBuilder, self: Value, size: Sequence[Dim]) -> Value:
    """self with other sizes; -1 is what is left."""
    return op.reshape(self, resolved(dims_of(self), size))


@lowers("aten.view_as.default", "aten.reshape_as.default")
def view_as(op: OpBuilder, self: Value, other: Value) -> Value:
    """self with the sizes of other."""
    return op.reshape(self, dims_of(other))


@lowers("aten.ravel.default")
def ravel(op: OpBuilder, self: Value) -> Value:
    """self flattened to one axis."""
    return flat(op, self)


@lowers(
    "prims.collapse.default",
    "prims.collapse_view.default",
    renamed={"self": "a", "start_dim": "start", "end_dim": "end"},
)
@lowers("aten.flatten.using_ints")
def flatten(op: OpBuilder, self: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    """self with the axes start_dim … end_dim as one."""
    dims = dims_of(self)
    if not dims:
        return op.reshape(self, [1])
    first, last = wrap(start_dim, len(dims)), wrap(end_dim, len(dims))
    merged = numel(dims[first : last + 1])
    return op.reshape(self, [*dims[:first], merged, *dims[last + 1 :]])


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


@lowers("prims.squeeze.default", renamed={"self": "a", "dim": "dimensions"})
@lowers("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims")
@lowers("aten.squeeze_copy.default", "aten.squeeze_copy.dim", "aten.squeeze_copy.dims")
@lowers("aten.squeeze_.dim")  # torch's decomposition of stft has it in place
def squeeze(op: OpBuilder, self: Value, dim: Sequence[int] | int | None = None) -> Value:
    """self without those of the given axes, by default of all axes, that have size 1.

    The exported program assumes that symbolic sizes are not 1.
    """
    dims = dims_of(self)
    if not dims:
        return self
    axes = range(len(dims)) if dim is None else [dim] if isinstance(dim, int) else dim
    return op.squeeze(self, sorted({wrap(a, len(dims)) for a in axes if dims[a] == 1}))


@lowers("aten.unsqueeze.default", "aten.unsqueeze_copy.default")
def unsqueeze(op: OpBuilder, self: Value, dim: int) -> Value:
    """self with a new axis of size 1."""
    return op.unsqueeze(self, [wrap(dim, rank_of(self) + 1)])


@lowers("aten.expand.default", "aten.expand_copy.default", "aten.broadcast_to.default")
def expand(op: OpBuilder, self: Value, size: Sequence[Dim]) -> Value:
    """self repeated along axes of size 1; -1 keeps a size."""
    dims = dims_of(self)
    lead = len(size) - len(dims)
    return op.expand(self, [dims[i - lead] if s == -1 else s for i, s in enumerate(size)])


@lowers("aten.expand_as.default")
def expand_as(op: OpBuilder, self: Value, other: Value) -> Value:
    """self repeated along axes of size 1 to the sizes of other."""
    return op.expand(self, dims_of(other))


@lowers("prims.broadcast_in_dim.default")
def broadcast_in_dim(
    op: OpBuilder, a: Value, shape: Sequence[Dim], broadcast_dimensions: Sequence[int]
) -> Value:
    """a with its axes at the given positions of a shape, repeated along the other axes."""
    added = [i for i in range(len(shape)) if i not in broadcast_dimensions]
    return op.expand(op.unsqueeze(a, added), shape)


# ---------------------------------------------------------------------- order of axes
@lowers("prims.transpose.default", renamed={"self": "a", "dims": "permutation"})
@lowers("aten.permute.default", "aten.permute_copy.default")
def permute(op: OpBuilder, self: Value, dims: Sequence[int]) -> Value:
    """self with its axes in another order."""
    return op.transpose(self, [wrap(d, len(dims)) for d in dims])


@lowers("aten.swapaxes.default", renamed={"dim0": "axis0", "dim1": "axis1"})
@lowers("aten.transpose.int", "aten.transpose_copy.int", "aten.swapdims.default")
@lowers("aten.transpose_.default")  # torch's decomposition of stft has it in place
def transpose(op: OpBuilder, self: Value, dim0: int, dim1: int) -> Value:
    """self with two axes exchanged."""
    rank = rank_of(self)
    order = list(range(rank))
    # torch accepts axes 0 and -1 of a 0-d tensor, which has none.
    if rank:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return op.transpose(self, order)


@lowers("aten.t.default", "aten.t_copy.default", "aten.numpy_T.default")
def reversed_axes(op: OpBuilder, self: Value) -> Value:
    """self with its axes in reverse order."""
    return op.transpose(self, list(reversed(range(rank_of(self)))))


@lowers("aten.mT.default", "aten.mH.default", "aten.adjoint.default", "aten.matrix_H.default")
def matrix_transpose(op: OpBuilder, self: Value) -> Value:
    """self with the last two axes exchanged."""
    return transpose(op, self, -2, -1)
