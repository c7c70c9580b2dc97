"""Resolves indexing by tensors (``x[a, :, mask]``): indexed axes, rows, and axes of the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.inference import broadcast_dims
from coreai_onnx.lower.nodes.tensors import reduction_dtype
from coreai_onnx.lower.nodes.values import Dim, Dims, Value, dims_of, dtype_of, maybe_dims, rank_of


@dataclass(frozen=True)
class AdvancedIndex:
    """Index tensors resolved against a source.

    Attributes:
        source: The source, with an axis of size 1 for each 0-d mask.
        added: The axes that 0-d masks added.
        axes: The axes of the source that are indexed, ascending.
        indices: One integer tensor per axis, all of one shape.
        rank: Rank of that shape, the block of axes that replaces the indexed ones.
        dims: That shape, or None if it depends on a mask at run time.
    """

    source: Value
    added: tuple[int, ...]
    axes: tuple[int, ...]
    indices: tuple[Value, ...]
    rank: int
    dims: Dims | None

    @property
    def rest(self) -> tuple[int, ...]:
        """The axes of the source that are not indexed."""
        return tuple(a for a in range(rank_of(self.source)) if a not in self.axes)

    @property
    def before(self) -> int:
        """The number of axes before the block in the result: 0 if the axes are not adjacent."""
        # As in NumPy, the block comes first if a slice separates the indexed axes.
        first, last = self.axes[0], self.axes[-1]
        return first if last - first + 1 == len(self.axes) else 0

    def stacked(self, op: OpBuilder) -> Value:
        """Return the indices as rows [..., axes], the form of GatherND and ScatterND."""
        wide = [op.cast(i, torch.int64) for i in self.indices]
        rows = [op.Unsqueeze(i, [-1]) for i in wide]
        return rows[0] if len(rows) == 1 else op.Concat(*rows, axis=-1)

    def block_shape(self, op: OpBuilder) -> Value:
        """Return the shape of the block as a 1-D value."""
        if self.dims is not None:
            return op.shape(self.dims)
        return op.Shape(self.indices[0])


def resolve(op: OpBuilder, source: Value, indices: Sequence[Value | None]) -> AdvancedIndex | None:
    """Return index tensors resolved against their source; None if every index is absent.

    Masks (bool, or uint8 as in torch) become the positions of their true elements.
    """
    axes: list[int] = []
    indexed: list[Value] = []
    added: list[int] = []
    masks, axis = 0, 0
    for index in indices:
        if index is None:
            axis += 1
            continue
        parts = [index]
        if is_mask(index):
            masks += 1
            if rank_of(index) == 0:
                source, index = op.unsqueeze(source, [axis]), op.reshape(index, [1])
                added.append(axis)
            parts = positions(op, index)
        axes += range(axis, axis + len(parts))
        indexed += parts
        axis += len(parts)
    if not indexed:
        return None
    # The positions of one mask have equal lengths, unknown before run time: aligning them would
    # only add nodes.
    same_mask = (
        masks == 1 and len(indexed) == len(axes) and all(i is None or is_mask(i) for i in indices)
    )
    aligned, rank, dims = (indexed, 1, None) if same_mask else _aligned(op, indexed)
    return AdvancedIndex(source, tuple(added), tuple(axes), tuple(aligned), rank, dims)


def is_mask(index: Value) -> bool:
    """Whether an index tensor is a mask and not a tensor of positions."""
    return dtype_of(index) in (torch.bool, torch.uint8)


def positions(op: OpBuilder, mask: Value) -> list[Value]:
    """Return the positions of the true elements of a mask, one 1-D tensor per axis."""
    rows = op.NonZero(op.cast(mask, torch.bool))
    if rank_of(mask) == 1:
        return [op.Squeeze(rows, [0])]
    return [op.Gather(rows, i, axis=0) for i in range(rank_of(mask))]


def _aligned(op: OpBuilder, indices: Sequence[Value]) -> tuple[list[Value], int, Dims | None]:
    """Broadcast index tensors against each other."""
    shapes = [maybe_dims(i) for i in indices]
    rank = max(1 if s is None else len(s) for s in shapes)
    if all(s is not None for s in shapes):
        dims: Dims = ()
        for s in shapes:
            dims = broadcast_dims(dims, s or ())
        return [op.expand(i, dims) for i in indices], rank, dims
    wide = [op.cast(i, torch.int64) for i in indices]
    # ONNX has no op for a common shape; a sum of the indices has it.
    total = wide[0]
    for i in wide[1:]:
        total = op.Add(total, i)
    shape = op.Shape(total)
    return [op.Expand(i, shape) for i in wide], rank, None


def read(op: OpBuilder, index: AdvancedIndex) -> Value:
    """Return the indexed elements."""
    # Gather reads any axis, so that it needs no transposes; GatherND reads leading axes only.
    if len(index.axes) == 1:
        return op.Gather(index.source, index.indices[0], axis=index.axes[0])
    front = op.transpose(index.source, [*index.axes, *index.rest])
    rows = op.GatherND(front, index.stacked(op))
    return op.transpose(rows, _from_front(index))


def write(op: OpBuilder, index: AdvancedIndex, values: Value, *, accumulate: bool) -> Value:
    """Return the source with values assigned to, or added to, the indexed elements."""
    # ScatterND writes to leading axes only.
    perm = [*index.axes, *index.rest]
    front = op.transpose(index.source, perm)
    updates = _updates(op, index, values)
    if accumulate:
        dtype = reduction_dtype(dtype_of(values))
        front, updates = op.cast(front, dtype), op.cast(updates, dtype)
    reduction = "add" if accumulate else "none"
    written = op.ScatterND(front, index.stacked(op), updates, reduction=reduction)
    written = op.cast(written, dtype_of(values))
    # Sorting positions by their target inverts a permutation.
    back = op.transpose(written, sorted(range(len(perm)), key=perm.__getitem__))
    return op.squeeze(back, index.added)


def _updates(op: OpBuilder, index: AdvancedIndex, values: Value) -> Value:
    """Return values broadcast to the indexed elements, the block of axes first."""
    rank = index.rank + len(index.rest)
    dims: list[Dim] = [1] * (rank - rank_of(values)) + list(dims_of(values))
    order = _from_front(index)
    front = sorted(range(rank), key=order.__getitem__)
    # As in torch, values may have more leading axes of size 1 than the elements have axes. For rank
    # 0, dims[-0:] would be all of them.
    moved = op.transpose(op.reshape(values, dims[-rank:] if rank else []), front)
    source = dims_of(index.source)
    rest = [source[a] for a in index.rest]
    if index.dims is not None:
        return op.expand(moved, [*index.dims, *rest])
    shape = (
        op.Concat(index.block_shape(op), op.shape(rest), axis=0) if rest else index.block_shape(op)
    )
    return op.Expand(moved, shape)


def _from_front(index: AdvancedIndex) -> list[int]:
    """Return the permutation that moves the block from the front to its position in the result."""
    block = list(range(index.rank))
    rest = list(range(index.rank, index.rank + len(index.rest)))
    return [*rest[: index.before], *block, *rest[index.before :]]
