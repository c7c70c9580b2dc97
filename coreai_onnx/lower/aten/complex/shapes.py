"""Shapes of complex tensors: the real lowerings on all axes but the last, or on each part."""

from __future__ import annotations

from collections.abc import Sequence

from coreai_onnx.lower.aten.complex.parts import (
    along_axes,
    as_pairs,
    by_parts,
    join,
    parts_of,
)
from coreai_onnx.lower.aten.indexing import partial_writes  # noqa: F401  # their lowerings are reused
from coreai_onnx.lower.aten.indexing import selection as indexing  # noqa: F401  # their lowerings are reused
from coreai_onnx.lower.aten.pointwise import conversion, masking  # noqa: F401  # their lowerings are reused
from coreai_onnx.lower.aten.shape import (  # noqa: F401  # their lowerings are reused
    combining,
    creation,
    padding,
    ranges,
    splitting,
    strided,
    views,
)
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.tensors import resolved
from coreai_onnx.lower.nodes.values import Dim, Value, dims_of, dtype_of, is_complex, real_part
from coreai_onnx.lower.walk.registry import Lowering, lowers

along_axes(
    {
        "aten.select.int": (1,),
        "aten.transpose.int": (1, 2),
        "aten.swapdims.default": (1, 2),
        "aten.slice.Tensor": (1,),
        "aten.narrow.default": (1,),
        "aten.flip.default": (1,),
        "aten.unbind.int": (1,),
    }
)
# One op on the pairs; by parts, each of these ops would be two, with a split and a join.
along_axes({"aten.unsqueeze.default": (1,)}, extra=1)
"""Ops whose axes have the same index with the trailing axis of 2 if counted from the front."""

_BY_PARTS = (
    "aten.alias.default",
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.detach.default",
    "aten.lift_fresh_copy.default",
    "aten.flatten.using_ints",
    "aten.unflatten.int",
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze_.dim",
    "aten.squeeze.dims",
    "aten.split.Tensor",
    "aten.split_with_sizes.default",
    "aten.chunk.default",
    "aten.diagonal.default",
    "aten.tril.default",
    "aten.triu.default",
    "aten.roll.default",
    "aten.repeat.default",
    "aten.index.Tensor",
    "aten.index_select.default",
    "aten.gather.default",
    "aten.index_put.default",
    "aten.constant_pad_nd.default",
    "aten.select_scatter.default",
    "aten.slice_scatter.default",
    "aten.masked_select.default",
    "aten.as_strided.default",
    "aten.t.default",
    "aten.unfold.default",
)
by_parts(*_BY_PARTS)
"""Ops that only move elements, so that they act on both parts alike."""


@lowers("aten.transpose_.default", complex=True)
def transpose_(op: OpBuilder, self: Value, dim0: int, dim1: int) -> Value:
    """self with two axes exchanged, which torch's decomposition of stft does in place."""
    rank = len(dims_of(self))
    order = list(range(rank + 1))
    first, second = dim0 % rank, dim1 % rank
    order[first], order[second] = second, first
    return op.transpose(self, order)


@lowers("aten.reshape.default", complex=True, renamed={"size": "shape"})
@lowers(
    "aten.view.default", "aten._unsafe_view.default", "aten._reshape_copy.default", complex=True
)
def view(op: OpBuilder, self: Value, size: Sequence[Dim]) -> Value:
    """self with other sizes; -1 is what is left."""
    return op.reshape(as_pairs(op, self), [*resolved(dims_of(self), size), 2])


@lowers("aten.expand.default", complex=True)
def expand(op: OpBuilder, self: Value, size: Sequence[Dim]) -> Value:
    """self repeated along axes of size 1; -1 keeps a size."""
    dims = dims_of(self)
    lead = len(size) - len(dims)
    sizes = [dims[i - lead] if s == -1 else s for i, s in enumerate(size)]
    return op.expand(op.unsqueeze(as_pairs(op, self), list(range(lead))), [*sizes, 2])


@lowers("aten.copy.default", complex=True)
def copy(op: OpBuilder, self: Value, src: Value) -> Value:
    """src broadcast to the sizes and dtype of self; the real part if self is real."""
    re, im = parts_of(op, src, real_part(dtype_of(self)))
    if not is_complex(self):
        return op.expand(re, dims_of(self))
    return op.expand(join(op, re, im), [*dims_of(self), 2])


@lowers("aten.permute.default", complex=True)
def permute(op: OpBuilder, self: Value, dims: Sequence[int]) -> Value:
    """self with its axes in another order."""
    return op.transpose(self, [*(d % len(dims) for d in dims), len(dims)])


@lowers("aten.cat.default", complex=True, combine=combining.cat)
@lowers("aten.stack.default", complex=True, combine=combining.stack)
def combined(op: OpBuilder, tensors: Sequence[Value], dim: int = 0, *, combine: Lowering) -> Value:
    """The concatenation of tensors, some of them real, along an axis or a new one."""
    dtypes = [real_part(dtype_of(t)) for t in tensors if dtype_of(t).is_complex]
    parts = [parts_of(op, t, dtypes[0]) for t in tensors]
    return join(op, *(combine(op, [p[i] for p in parts], dim) for i in (0, 1)))


@lowers("aten.mH.default", "aten.adjoint.default", "aten.matrix_H.default", complex=True)
def adjoint(op: OpBuilder, self: Value) -> Value:
    """The conjugate with the last two axes exchanged."""
    rank = len(dims_of(self))
    turned = op.transpose(self, [*range(rank - 2), rank - 1, rank - 2, rank])
    return op.Mul(turned, op.const([1.0, -1.0], turned.dtype))
