"""Orthogonal polynomials by their three-term recurrences, for degrees that are tensors.

The recurrences are those of M. Abramowitz and I. Stegun, Handbook of Mathematical Functions,
table 22.7, run in float64 on all elements up to the highest degree among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.inference import broadcast_dims
from coreai_onnx.lower.nodes.loops import any_true, repeat_while
from coreai_onnx.lower.nodes.numerics import in_double
from coreai_onnx.lower.nodes.values import Number, Value, dims_of, promoted_dtype
from coreai_onnx.lower.walk.registry import lowers

Next = Callable[[OpBuilder, Value, Value, Value, Value], Value]
"""P(k + 1) from x, k, P(k) and P(k - 1)."""


@dataclass(frozen=True)
class Family:
    """A family of polynomials of all degrees.

    Attributes:
        slope: P(1) is slope * x + offset; P(0) is 1.
        offset: See ``slope``.
        following: The recurrence.
        shifted: Whether the argument is 2 x - 1 instead of x.
        limited: Whether torch returns NaN for degrees above a limit (for Hermite polynomials).
    """

    slope: float
    offset: float
    following: Next
    shifted: bool = False
    limited: bool = False


def _chebyshev(op: OpBuilder, x: Value, k: Value, now: Value, before: Value) -> Value:
    """2 x P(k) - P(k - 1)."""
    del k
    return op.Sub(op.Mul(op.Mul(x, 2.0), now), before)


def _hermite_h(op: OpBuilder, x: Value, k: Value, now: Value, before: Value) -> Value:
    """2 x H(k) - 2 k H(k - 1)."""
    return op.Mul(_hermite_he(op, x, k, now, before), 2.0)


def _hermite_he(op: OpBuilder, x: Value, k: Value, now: Value, before: Value) -> Value:
    """He(k) x - k He(k - 1)."""
    return op.Sub(op.Mul(x, now), op.Mul(k, before))


def _laguerre(op: OpBuilder, x: Value, k: Value, now: Value, before: Value) -> Value:
    """((2 k + 1 - x) L(k) - k L(k - 1)) / (k + 1)."""
    first = op.Mul(op.Sub(op.Add(op.Mul(k, 2.0), 1.0), x), now)
    return op.Div(op.Sub(first, op.Mul(k, before)), op.Add(k, 1.0))


def _legendre(op: OpBuilder, x: Value, k: Value, now: Value, before: Value) -> Value:
    """((2 k + 1) x P(k) - k P(k - 1)) / (k + 1)."""
    first = op.Mul(op.Mul(op.Add(op.Mul(k, 2.0), 1.0), x), now)
    return op.Div(op.Sub(first, op.Mul(k, before)), op.Add(k, 1.0))


_FAMILIES = {
    "chebyshev_polynomial_t": Family(1.0, 0.0, _chebyshev),
    "chebyshev_polynomial_u": Family(2.0, 0.0, _chebyshev),
    "chebyshev_polynomial_v": Family(2.0, -1.0, _chebyshev),
    "chebyshev_polynomial_w": Family(2.0, 1.0, _chebyshev),
    "shifted_chebyshev_polynomial_t": Family(1.0, 0.0, _chebyshev, shifted=True),
    "shifted_chebyshev_polynomial_u": Family(2.0, 0.0, _chebyshev, shifted=True),
    "shifted_chebyshev_polynomial_v": Family(2.0, -1.0, _chebyshev, shifted=True),
    "shifted_chebyshev_polynomial_w": Family(2.0, 1.0, _chebyshev, shifted=True),
    "hermite_polynomial_h": Family(2.0, 0.0, _hermite_h, limited=True),
    "hermite_polynomial_he": Family(1.0, 0.0, _hermite_he, limited=True),
    "laguerre_polynomial_l": Family(-1.0, 1.0, _laguerre),
    "legendre_polynomial_p": Family(1.0, 0.0, _legendre),
}


def evaluate(op: OpBuilder, x: Value | Number, n: Value | Number, *, family: Family) -> Value:
    """The polynomials of degrees trunc(n) at x; 0 for a negative degree."""
    # The limits of torch for the two dtypes.
    limit = 512.0 if promoted_dtype(x, n) == torch.float64 else 128.0
    at, degree = in_double(op, x, n)
    dims = broadcast_dims(dims_of(at), dims_of(degree))
    degree = op.cast(op.cast(op.expand(degree, dims), torch.int64), torch.float64)
    at = op.expand(at, dims)
    if family.shifted:
        at = op.Sub(op.Mul(at, 2.0), 1.0)
    one = op.expand(op.like(at, 1.0), dims)
    first = op.Add(op.Mul(at, family.slope), family.offset)
    # Beyond the limit the result is NaN, so that the loop need not run on.
    bound = op.Min(degree, limit + 1.0) if family.limited else degree

    def unfinished(inner: OpBuilder, state: list[Value]) -> Value:
        return any_true(inner, inner.Greater(bound, state[0]))

    def step(inner: OpBuilder, state: list[Value]) -> list[Value]:
        k, now, before = state
        going = inner.Greater(bound, k)
        after = family.following(inner, at, k, now, before)
        return [inner.Add(k, 1.0), inner.Where(going, after, now), inner.Where(going, now, before)]

    start = [op.const(1.0, torch.float64), first, one]
    value = repeat_while(op, start, unfinished, step)[1]
    # The loop starts at degree 1.
    value = op.Where(op.Less(degree, 1.0), one, value)
    if family.limited:
        value = op.Where(op.Greater(degree, limit), math.nan, value)
    return op.Where(op.Less(degree, 0.0), op.like(at, 0.0), value)


for _name, _family in _FAMILIES.items():
    _overloads = [f"aten.special_{_name}.{form}" for form in ("default", "x_scalar", "n_scalar")]
    lowers(*_overloads, family=_family)(evaluate)
