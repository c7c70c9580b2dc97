"""Formulas of positions and of masks that are computed from positions.

A tensor of positions is affine in its indices: its element at ``(i, j)`` is
``start + a * i + b * j``. A comparison of two such tensors is true where a third one is not above
zero: ``j <= i`` is true where ``j - i`` is not above zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coreai_onnx.passes.analysis.amounts import Amount

ONE = Amount(1)
Dims = tuple[Amount | None, ...]


@dataclass(frozen=True)
class Count:
    """Integers, or booleans as 0 and 1, that grow by a fixed step along each axis.

    Attributes:
        start: The element at the origin.
        steps: How much an element exceeds the one before it, per axis; 0 on axes of size 1.
        dims: The size of each axis; None if not known.
    """

    start: Amount
    steps: tuple[int, ...]
    dims: Dims

    @property
    def everywhere(self) -> int | None:
        """The value, if all elements are equal."""
        return None if any(self.steps) else self.start.number

    @property
    def most(self) -> int | None:
        """An upper bound of the elements; None if there is none."""
        bound = self.start
        for step, dim in zip(self.steps, self.dims, strict=True):
            if step > 0:
                if dim is None:
                    return None
                bound += (dim - 1) * step
        return bound.most


@dataclass(frozen=True)
class Region:
    """A mask that is true where no element of several counts is above zero.

    Attributes:
        excesses: The counts, all of the mask's shape.
        dims: The size of each axis.
    """

    excesses: tuple[Count, ...]
    dims: Dims


Known = Count | Region


def count_of(start: Amount, steps: Sequence[int], dims: Dims) -> Count:
    """Return a count, with step 0 along axes of size 1."""
    kept = (0 if dim == ONE else step for step, dim in zip(steps, dims, strict=True))
    return Count(start, tuple(kept), dims)


def joint(first: Dims, second: Dims) -> Dims:
    """Return the dims of two tensors broadcast together."""
    rank = max(len(first), len(second))
    first, second = ((ONE,) * (rank - len(dims)) + dims for dims in (first, second))
    pairs = zip(first, second, strict=True)
    return tuple(b if a == ONE else (a if b in (ONE, a) else None) for a, b in pairs)


def spread(count: Count, dims: Dims) -> Count | None:
    """Return a count broadcast to larger dims; None if an axis with a step might be repeated."""
    lead = len(dims) - len(count.dims)
    if lead < 0:
        return None
    for step, mine, wanted in zip(count.steps, count.dims, dims[lead:], strict=True):
        if step and (mine is None or mine != wanted):
            return None
    return count_of(count.start, (0,) * lead + count.steps, dims)


def each(known: Known, change: Callable[[Count], Count | None]) -> Known | None:
    """Change a count, or all counts of a region."""
    if isinstance(known, Count):
        return change(known)
    changed = [change(excess) for excess in known.excesses]
    if any(one is None for one in changed):
        return None
    kept = tuple(one for one in changed if one is not None)
    return Region(kept, kept[0].dims)
