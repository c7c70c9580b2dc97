"""The gamma function's family: lgamma, digamma, polygamma, zeta, incomplete gamma.

All of it is computed in float64. Formulas are those of M. Abramowitz and I. Stegun, Handbook of
Mathematical Functions ("A&S").
"""

from __future__ import annotations

import math

import numpy as np
import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.inference import broadcast_dims
from coreai_onnx.lower.nodes.loops import any_true, repeat_while
from coreai_onnx.lower.nodes.numerics import horner, in_double, weighted_sum
from coreai_onnx.lower.nodes.values import Number, Value, dims_of
from coreai_onnx.lower.walk.registry import lowers

_SHIFT = 10
"""Stirling's series is used from here on, where the first term that is left out is below 1e-17."""
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
"""The Bernoulli numbers B2, B4, … B16."""
_STEPS = np.arange(_SHIFT, dtype=np.float64)


def _summed(op: OpBuilder, terms: Value) -> Value:
    """Return the sum of the terms along the last axis."""
    return weighted_sum(op, terms, np.ones(_SHIFT))


def lgamma_of(op: OpBuilder, x: Value) -> Value:
    """Return log(abs(gamma(x))) of float64 numbers.

    Stirling's series (A&S 6.1.41) from 10 on, which smaller arguments reach by the recurrence
    6.1.15; the reflection 6.1.17 below 1/2.
    """
    reflect = op.Less(x, 0.5)
    z = op.Where(reflect, op.Sub(1.0, x), x)
    low = op.Less(z, float(_SHIFT))
    near = op.Clip(z, 0.5, float(_SHIFT))
    logs = _summed(op, op.Log(op.Add(op.unsqueeze(near, [-1]), op.const(_STEPS))))
    w = op.Where(low, op.Add(near, float(_SHIFT)), z)
    coefficients = [b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI, 1)]
    inverse = op.Reciprocal(w)
    tail = op.Mul(horner(op, op.Mul(inverse, inverse), coefficients[::-1]), inverse)
    main = op.Mul(op.Sub(w, 0.5), op.Sub(op.Log(w), 1.0))
    value = op.Add(op.Add(main, tail), 0.5 * math.log(2 * math.pi) - 0.5)
    value = op.Sub(value, op.Where(low, logs, op.like(x, 0.0)))
    value = op.Where(op.Equal(z, math.inf), math.inf, value)
    # The distance to the next integer is exact, whereas π x is rounded.
    sine = op.Abs(op.Sin(op.Mul(op.Sub(x, op.Round(x)), math.pi)))
    mirrored = op.Sub(op.Sub(math.log(math.pi), op.Log(sine)), value)
    mirrored = op.Where(op.Equal(x, op.Floor(x)), math.inf, mirrored)
    return op.Where(reflect, mirrored, value)


@lowers("aten.lgamma.default", "aten.special_gammaln.default", "prims.lgamma.default")
def lgamma(op: OpBuilder, self: Value) -> Value:
    """log(abs(gamma(self)))."""
    return lgamma_of(op, in_double(op, self)[0])


@lowers("aten.digamma.default", "aten.special_digamma.default", "prims.digamma.default")
def digamma(op: OpBuilder, self: Value) -> Value:
    """The derivative of log(gamma): the series A&S 6.3.18 from 10 on, 6.3.5 and 6.3.7 below."""
    (x,) = in_double(op, self)
    reflect = op.Less(x, 0.0)
    z = op.Where(reflect, op.Sub(1.0, x), x)
    low = op.Less(z, float(_SHIFT))
    near = op.Clip(z, 0.0, float(_SHIFT))
    shifts = _summed(op, op.Reciprocal(op.Add(op.unsqueeze(near, [-1]), op.const(_STEPS))))
    w = op.Where(low, op.Add(near, float(_SHIFT)), z)
    inverse = op.Reciprocal(w)
    square = op.Mul(inverse, inverse)
    coefficients = [b / (2 * k) for k, b in enumerate(_BERNOULLI, 1)]
    tail = op.Add(op.Mul(horner(op, square, coefficients[::-1]), square), op.Mul(inverse, 0.5))
    value = op.Sub(op.Log(w), tail)
    value = op.Sub(value, op.Where(low, shifts, op.like(x, 0.0)))
    angle = op.Mul(op.Sub(x, op.Round(x)), math.pi)
    mirrored = op.Sub(value, op.Div(op.Mul(op.Cos(angle), math.pi), op.Sin(angle)))
    mirrored = op.Where(op.Equal(x, op.Floor(x)), math.nan, mirrored)
    # As in torch, digamma is -inf at 0.0 and inf at -0.0.
    value = op.Where(op.Equal(x, 0.0), op.Neg(op.Reciprocal(x)), value)
    return op.Where(reflect, mirrored, value)


# ---------------------------------------------------------------- zeta
def zeta_of(op: OpBuilder, x: Value, q: Value) -> Value:
    """Return the sum of (q + k) ** -x over k = 0, 1, … (Hurwitz) of float64 numbers.

    Ten terms, and the rest by the Euler-Maclaurin formula (A&S 23.2.9 and 3.6.28). A negative q is
    first shifted above zero term by term, which requires an integer x.
    """
    dims = broadcast_dims(dims_of(x), dims_of(q))
    power, start = op.expand(op.Neg(x), dims), op.expand(q, dims)
    finite = op.Greater(start, -math.inf)
    # -inf would never reach zero in the loop.
    start = op.Where(finite, start, op.like(q, 0.0))

    def below(inner: OpBuilder, state: list[Value]) -> Value:
        return any_true(inner, inner.Less(state[1], 0.0))

    def step(inner: OpBuilder, state: list[Value]) -> list[Value]:
        total, a = state
        negative = inner.Less(a, 0.0)
        none = inner.like(a, 0.0)
        total = inner.Add(total, inner.Where(negative, inner.Pow(a, power), none))
        return [total, inner.Add(a, inner.Where(negative, inner.like(a, 1.0), none))]

    first = [op.expand(op.like(q, 0.0), dims), start]
    total, a = repeat_while(op, first, below, step)
    terms = op.Pow(op.Add(op.unsqueeze(a, [-1]), op.const(_STEPS)), op.unsqueeze(power, [-1]))
    total = op.Add(total, _summed(op, terms))
    total = op.Add(total, _zeta_rest(op, power, op.Add(a, float(_SHIFT))))
    poles = op.And(op.LessOrEqual(q, 0.0), op.Equal(q, op.Floor(q)))
    undefined = op.And(op.Less(q, 0.0), op.Not(op.Equal(x, op.Floor(x))))
    total = op.Where(undefined, math.nan, total)
    total = op.Where(op.Equal(q, math.inf), op.like(q, 0.0), total)
    total = op.Where(op.Or(poles, op.Equal(x, 1.0)), math.inf, total)
    return op.Where(op.Or(op.Less(x, 1.0), op.Not(finite)), math.nan, total)


def _zeta_rest(op: OpBuilder, power: Value, w: Value) -> Value:
    """Return the sum of (w + k) ** power over k = 0, 1, … by Euler and Maclaurin."""
    term = op.Pow(w, power)
    x = op.Neg(power)
    rest = op.Add(op.Div(op.Mul(term, w), op.Sub(x, 1.0)), op.Mul(term, 0.5))
    factor = op.Div(op.Mul(term, x), w)
    for k, b in enumerate(_BERNOULLI, 1):
        rest = op.Add(rest, op.Mul(factor, b / math.factorial(2 * k)))
        rising = op.Mul(op.Add(x, float(2 * k - 1)), op.Add(x, float(2 * k)))
        factor = op.Div(op.Mul(factor, rising), op.Mul(w, w))
    return rest


@lowers(
    "aten.special_zeta.default",
    "aten.special_zeta.self_scalar",
    "aten.special_zeta.other_scalar",
    "prims.zeta.default",
)
def zeta(op: OpBuilder, self: Value | Number, other: Value | Number) -> Value:
    """The Hurwitz zeta function: the sum of (other + k) ** -self."""
    return zeta_of(op, *in_double(op, self, other))


@lowers("aten.polygamma.default")
def polygamma(op: OpBuilder, n: int, self: Value) -> Value:
    """The n-th derivative of digamma: (-1) ** (n + 1) n! zeta(n + 1, self) (A&S 6.4.10)."""
    if n == 0:
        return digamma(op, self)
    (x,) = in_double(op, self)
    factor = (-1.0) ** (n + 1) * math.factorial(n)
    return op.Mul(zeta_of(op, op.const(n + 1.0, torch.float64), x), factor)


# ---------------------------------------------------------------- incomplete gamma
@lowers("aten.igamma.default", "aten.special_gammainc.default", "prims.igamma.default")
@lowers("aten.igammac.default", "aten.special_gammaincc.default", upper=True)
@lowers("prims.igammac.default", upper=True)
def incomplete(op: OpBuilder, self: Value, other: Value, *, upper: bool = False) -> Value:
    """The regularized incomplete gamma functions P (lower) and Q = 1 - P (upper) of self.

    By the series A&S 6.5.29 below a + 1, the continued fraction 6.5.31 above.
    """
    a, x = in_double(op, self, other)
    dims = broadcast_dims(dims_of(a), dims_of(x))
    a, x = op.expand(a, dims), op.expand(x, dims)
    plain = op.And(op.And(op.Greater(a, 0.0), op.Less(a, math.inf)), op.Greater(x, 0.0))
    plain = op.And(plain, op.Less(x, math.inf))
    one = op.like(a, 1.0)
    a_, x_ = op.Where(plain, a, one), op.Where(plain, x, one)
    log_front = op.Sub(op.Sub(op.Mul(a_, op.Log(x_)), x_), lgamma_of(op, a_))
    front = op.Exp(log_front)
    series = op.Less(x_, op.Add(a_, 1.0))
    # The loops run until every element converges. Elements of the other branch get arguments for
    # which this is soon.
    below = op.Mul(front, _lower_series(op, a_, op.Where(series, x_, op.like(a, 0.0))))
    above = op.Mul(front, _upper_fraction(op, a_, op.Where(series, op.Add(a_, 2.0), x_)))
    if upper:
        value = op.Where(series, op.Sub(1.0, below), above)
    else:
        value = op.Where(series, below, op.Sub(1.0, above))
    return _at_the_ends(op, a, x, value, float(upper))


def _at_the_ends(op: OpBuilder, a: Value, x: Value, value: Value, at_zero: float) -> Value:
    """Replace the values at zero and infinity by the limits; ``at_zero`` is that at x = 0."""
    zero, infinite = op.Equal(a, 0.0), op.Equal(a, math.inf)
    value = op.Where(op.Or(op.IsNaN(a), op.IsNaN(x)), math.nan, value)
    value = op.Where(op.Or(op.Equal(x, 0.0), infinite), at_zero, value)
    value = op.Where(op.Or(op.Equal(x, math.inf), zero), 1.0 - at_zero, value)
    both = op.And(zero, op.Not(op.Greater(x, 0.0)))
    both = op.Or(both, op.And(infinite, op.Equal(x, math.inf)))
    outside = op.Or(both, op.Or(op.Less(a, 0.0), op.Less(x, 0.0)))
    return op.Where(outside, math.nan, value)


def _lower_series(op: OpBuilder, a: Value, x: Value) -> Value:
    """Return 1/a + x/(a (a + 1)) + x²/(a (a + 1) (a + 2)) + …, until terms are negligible."""

    def unfinished(inner: OpBuilder, state: list[Value]) -> Value:
        # Smaller terms do not change the sum, since the spacing of float64 is 2.2e-16.
        return any_true(inner, inner.Greater(state[1], inner.Mul(state[0], 1e-17)))

    def step(inner: OpBuilder, state: list[Value]) -> list[Value]:
        total, term, divisor = state
        divisor = inner.Add(divisor, 1.0)
        term = inner.Div(inner.Mul(term, x), divisor)
        return [inner.Add(total, term), term, divisor]

    first = op.Reciprocal(a)
    return repeat_while(op, [first, first, a], unfinished, step)[0]


def _upper_fraction(op: OpBuilder, a: Value, x: Value) -> Value:
    """Return 1/(x + 1 - a - 1 (1 - a)/(x + 3 - a - 2 (2 - a)/…)) by W. Lentz' method."""

    def unfinished(inner: OpBuilder, state: list[Value]) -> Value:
        return any_true(inner, inner.Greater(inner.Abs(inner.Sub(state[3], 1.0)), 1e-15))

    def step(inner: OpBuilder, state: list[Value]) -> list[Value]:
        total, c, d, _, b, k = state
        factor = inner.Mul(k, inner.Sub(a, k))
        b = inner.Add(b, 2.0)
        d = inner.Reciprocal(inner.Add(inner.Mul(factor, d), b))
        c = inner.Add(b, inner.Div(factor, c))
        change = inner.Mul(c, d)
        return [inner.Mul(total, change), c, d, change, b, inner.Add(k, 1.0)]

    b = op.Add(op.Sub(x, a), 1.0)
    d = op.Reciprocal(b)
    none, one = op.Mul(a, 0.0), op.Add(op.Mul(a, 0.0), 1.0)
    # 1e300 stands for infinity, from which the method starts.
    state = [d, op.Add(none, 1e300), d, none, b, one]
    return repeat_while(op, state, unfinished, step)[0]
