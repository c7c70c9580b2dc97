"""Affine expressions of named dims, and tensors and masks that are affine in their indices.

A tensor of positions is affine in its indices: its element at ``(i, j)`` is
``start + a * i + b * j``, where ``start`` is an expression such as ``past + seq - 1``. A comparison
of two such tensors is true where a third one is not above zero: ``j <= i`` is true where ``j - i``
is not above zero.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coreai_onnx.passes.engine.match import Dim

_TERM = re.compile(r"\s*([+-]?)\s*(?:(\d+)(?:\*([A-Za-z_][\w*]*))?|([A-Za-z_][\w*]*))\s*(?=[+-]|$)")


@dataclass(frozen=True)
class AffineExpr:
    """A constant plus multiples of named dims.

    Attributes:
        constant: The constant term.
        terms: Names, or products of names, and their factors, sorted; no factor is 0.
    """

    constant: int = 0
    terms: tuple[tuple[str, int], ...] = ()

    def __add__(self, other: AffineExpr | int) -> AffineExpr:
        """Return the sum."""
        if isinstance(other, int):
            return AffineExpr(self.constant + other, self.terms)
        factors = dict(self.terms)
        for name, factor in other.terms:
            factors[name] = factors.get(name, 0) + factor
        kept = sorted((name, factor) for name, factor in factors.items() if factor)
        return AffineExpr(self.constant + other.constant, tuple(kept))

    def __sub__(self, other: AffineExpr | int) -> AffineExpr:
        """Return the difference."""
        return self + other * -1

    def __mul__(self, factor: int) -> AffineExpr:
        """Return a multiple."""
        terms = tuple((name, factor * times) for name, times in self.terms) if factor else ()
        return AffineExpr(self.constant * factor, terms)

    @property
    def int_value(self) -> int | None:
        """The value, if the expression has no named dim."""
        return None if self.terms else self.constant

    @property
    def upper_bound(self) -> int | None:
        """An upper bound, given that no dim is negative; None if there is no bound."""
        # With negative factors only, the largest value is that for dims of 0.
        return self.constant if all(factor < 0 for _, factor in self.terms) else None


def affine_expr(dim: Dim) -> AffineExpr | None:
    """Parse a dim, None for None; text that is not a sum of products counts as one name."""
    if dim is None or isinstance(dim, int):
        return None if dim is None else AffineExpr(dim)
    total, end = AffineExpr(), 0
    while end < len(dim):
        match = _TERM.match(dim, end)
        # A term after the first needs a sign.
        if match is None or (end and not match[1]):
            return AffineExpr(0, ((dim, 1),))
        sign = -1 if match[1] == "-" else 1
        name = match[3] or match[4]
        size = int(match[2] or 1)
        total += AffineExpr(0, ((name, sign * size),)) if name else AffineExpr(sign * size)
        end = match.end()
    return total


ONE = AffineExpr(1)
AffineDims = tuple[AffineExpr | None, ...]


@dataclass(frozen=True)
class AffineTensor:
    """Integers, or booleans as 0 and 1, that grow by a fixed step along each axis.

    Attributes:
        start: The element at the origin.
        steps: How much an element exceeds the one before it, per axis; 0 on axes of size 1.
        dims: The size of each axis; None if not known.
    """

    start: AffineExpr
    steps: tuple[int, ...]
    dims: AffineDims

    @classmethod
    def filled(cls, value: int, dims: AffineDims) -> AffineTensor:
        """Return a tensor whose elements are all equal."""
        return cls(AffineExpr(value), (0,) * len(dims), dims)

    def scaled(self, factor: int) -> AffineTensor:
        """Return the tensor times a number."""
        return AffineTensor(
            self.start * factor, tuple(step * factor for step in self.steps), self.dims
        )

    def permuted(self, axes: Sequence[int]) -> AffineTensor:
        """Return the tensor with these axes in this order; the others have size 1."""
        steps = tuple(self.steps[axis] for axis in axes)
        return AffineTensor(self.start, steps, tuple(self.dims[axis] for axis in axes))

    @property
    def splat(self) -> int | None:
        """The value, if all elements are equal."""
        return None if any(self.steps) else self.start.int_value

    @property
    def upper_bound(self) -> int | None:
        """An upper bound of the elements; None if there is none."""
        bound = self.start
        for step, dim in zip(self.steps, self.dims, strict=True):
            if step > 0:
                if dim is None:
                    return None
                bound += (dim - 1) * step
        return bound.upper_bound


@dataclass(frozen=True)
class AffineMask:
    """A mask that is true where no element of several affine tensors is above zero.

    Attributes:
        constraints: The affine tensors, all of the mask's shape.
        dims: The size of each axis.
    """

    constraints: tuple[AffineTensor, ...]
    dims: AffineDims

    @property
    def splat(self) -> None:
        """No mask is known to have equal elements; those that are, are affine tensors."""
        return


AffineValue = AffineTensor | AffineMask


def affine_tensor(start: AffineExpr, steps: Sequence[int], dims: AffineDims) -> AffineTensor:
    """Return an affine tensor, with step 0 along axes of size 1."""
    # The step is never taken along such an axis; 0 makes equal tensors compare equal.
    kept = (0 if dim == ONE else step for step, dim in zip(steps, dims, strict=True))
    return AffineTensor(start, tuple(kept), dims)


def broadcast_dims(first: AffineDims, second: AffineDims) -> AffineDims:
    """Return the dims of two tensors broadcast together."""
    rank = max(len(first), len(second))
    first, second = ((ONE,) * (rank - len(dims)) + dims for dims in (first, second))
    pairs = zip(first, second, strict=True)
    # Two names that differ may be one size at run time, or one of them 1: the dim is not known.
    return tuple(b if a == ONE else (a if b in (ONE, a) else None) for a, b in pairs)


def broadcast(x: AffineTensor, dims: AffineDims) -> AffineTensor | None:
    """Return a tensor broadcast to larger dims; None if an axis with a step may be repeated."""
    lead = len(dims) - len(x.dims)
    if lead < 0:
        return None
    for step, mine, target in zip(x.steps, x.dims, dims[lead:], strict=True):
        if step and (mine is None or mine != target):
            return None
    return affine_tensor(x.start, (0,) * lead + x.steps, dims)


def transform(
    value: AffineValue, change: Callable[[AffineTensor], AffineTensor | None]
) -> AffineValue | None:
    """Change an affine tensor, or all constraints of a mask."""
    if isinstance(value, AffineTensor):
        return change(value)
    changed = [one for constraint in value.constraints if (one := change(constraint)) is not None]
    complete = len(changed) == len(value.constraints)
    return AffineMask(tuple(changed), changed[0].dims) if complete else None
