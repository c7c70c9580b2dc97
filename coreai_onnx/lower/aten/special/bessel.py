"""Bessel functions of order 0 and 1, and the Airy function, computed in float64.

Integrals of analytic functions that are periodic, or vanish at both ends, are summed by the
trapezoidal rule, which converges exponentially (L. N. Trefethen and J. A. C. Weideman, The
exponentially convergent trapezoidal rule, SIAM Review 56, 2014); beyond them the asymptotic
series of M. Abramowitz and I. Stegun, Handbook of Mathematical Functions ("A&S").
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.numerics import in_double, power_series, weighted_sum
from coreai_onnx.lower.nodes.values import Value
from coreai_onnx.lower.walk.registry import lowers

_POINTS = 24
"""Steps of the trapezoidal rule: with 22 and more, exp(-x) I0(x) differs from torch's by less than
1e-15 for x up to 1e6, with 20 by 6e-15 and with 16 by 3e-10."""
_FAR = 25.0
"""From here on J and Y are computed by their asymptotic series."""
_ANGLES = (np.arange(40) + 0.5) * (math.pi / 2) / 40
_EULER = 0.57721566490153286


# ---------------------------------------------------------------- I
def scaled_i(op: OpBuilder, x: Value, order: int) -> Value:
    """Return exp(-x) I(x) for x >= 0: exp(x (cos t - 1)) cos(n t) / pi summed over [0, pi].

    (A&S 9.6.19.) For large x the integrand is narrow: the points then cover only the part of the
    interval where it is not zero.
    """
    share = np.arange(_POINTS + 1) / _POINTS
    weights = np.where((share == 0) | (share == 1), 0.5, 1.0) / _POINTS
    # At the end of this part the integrand is at most exp(-40), which does not change the sum.
    width = op.Sqrt(op.Min(op.Div(20.0, op.Max(x, 1e-300)), 1.0))
    angles = op.Mul(op.unsqueeze(width, [-1]), op.const(share * math.pi))
    half = op.Sin(op.Mul(angles, 0.5))
    # x stays finite, because the width is 0 for an infinite one, and 0 * inf is NaN.
    exponent = op.Mul(op.Mul(half, half), op.Mul(op.unsqueeze(op.Min(x, 1e300), [-1]), -2.0))
    terms = op.Exp(exponent)
    if order:
        terms = op.Mul(terms, op.Cos(angles))
    return op.Mul(weighted_sum(op, terms, weights), width)


@lowers("aten.i0.default", "aten.special_i0.default", "prims.bessel_i0.default", order=0)
@lowers("aten.special_modified_bessel_i0.default", order=0)
@lowers("aten.special_i0e.default", "prims.bessel_i0e.default", order=0, scaled=True)
@lowers("aten.special_i1.default", "prims.bessel_i1.default", order=1)
@lowers("aten.special_modified_bessel_i1.default", order=1)
@lowers("aten.special_i1e.default", "prims.bessel_i1e.default", order=1, scaled=True)
def modified_first_kind(op: OpBuilder, self: Value, *, order: int, scaled: bool = False) -> Value:
    """I(x), or exp(-abs(x)) I(x)."""
    (x,) = in_double(op, self)
    size = op.Abs(x)
    value = scaled_i(op, size, order)
    if not scaled:
        half = op.Exp(op.Mul(size, 0.5))
        # In two factors, because exp(x) overflows a little before I(x) does.
        value = op.Mul(op.Mul(value, half), half)
    if order:
        value = op.Mul(value, op.Sign(x))
    return op.Where(op.IsNaN(x), x, value)


# ---------------------------------------------------------------- K
def scaled_k(op: OpBuilder, x: Value, order: float) -> Value:
    """Return exp(x) K(x) for x >= 1: exp(-x (cosh t - 1)) cosh(n t) summed over t >= 0 (9.6.24)."""
    x = op.Clip(x, 1.0, 1e300)
    steps = np.arange(33, dtype=np.float64)
    weights = np.where(steps == 0, 0.5, 1.0)
    reach = op.Div(40.0, x)  # cosh(end) - 1, at which the integrand is exp(-40)
    end = op.Log(op.Add(op.Add(reach, 1.0), op.Sqrt(op.Mul(reach, op.Add(reach, 2.0)))))
    width = op.Mul(end, 1 / 32)
    t = op.Mul(op.unsqueeze(width, [-1]), op.const(steps))
    grown = op.Exp(op.Mul(t, 0.5))
    sine = op.Sub(grown, op.Reciprocal(grown))  # 2 sinh(t / 2), and cosh t - 1 = half its square
    terms = op.Exp(op.Mul(op.Mul(op.Mul(sine, sine), op.unsqueeze(x, [-1])), -0.5))
    if order:
        power = op.Exp(op.Mul(t, order))
        terms = op.Mul(terms, op.Mul(op.Add(power, op.Reciprocal(power)), 0.5))
    return op.Mul(weighted_sum(op, terms, weights), width)


def _small_k(op: OpBuilder, x: Value, order: int) -> Value:
    """Return K(x) for 0 < x <= 1 by its power series (A&S 9.6.11 and 9.6.13)."""
    square = op.Mul(op.Mul(x, x), 0.25)
    logarithm = op.Add(op.Log(op.Mul(x, 0.5)), _EULER)
    k = range(12)
    harmonic = [sum(1 / j for j in range(1, i + 1)) for i in range(14)]
    factorial = [float(math.factorial(i)) for i in range(14)]
    if order == 0:
        first = power_series(op, square, [1 / factorial[i] ** 2 for i in k])
        second = power_series(op, square, [harmonic[i] / factorial[i] ** 2 for i in k])
        return op.Sub(second, op.Mul(logarithm, first))
    half = op.Mul(x, 0.5)
    first = power_series(op, square, [1 / (factorial[i] * factorial[i + 1]) for i in k])
    middle = [(harmonic[i] + harmonic[i + 1]) / 2 / (factorial[i] * factorial[i + 1]) for i in k]
    second = power_series(op, square, middle)
    inner = op.Mul(half, op.Sub(op.Mul(logarithm, first), second))
    return op.Add(op.Reciprocal(x), inner)


_SCALED: dict[str, Any] = {"renamed": {"self": "x"}, "scaled": True}


@lowers("aten.special_modified_bessel_k0.default", order=0)
@lowers("aten.special_modified_bessel_k1.default", order=1)
@lowers("aten.special_scaled_modified_bessel_k0.default", order=0, **_SCALED)
@lowers("aten.special_scaled_modified_bessel_k1.default", order=1, **_SCALED)
def modified_second_kind(op: OpBuilder, self: Value, *, order: int, scaled: bool = False) -> Value:
    """K(x), or exp(x) K(x)."""
    (x,) = in_double(op, self)
    near, far = _small_k(op, op.Min(x, 1.0), order), scaled_k(op, x, order)
    if scaled:
        near = op.Mul(near, op.Exp(op.Min(x, 1.0)))
    else:
        far = op.Mul(far, op.Exp(op.Neg(x)))
    value = op.Where(op.LessOrEqual(x, 1.0), near, far)
    value = op.Where(op.Equal(x, 0.0), math.inf, value)
    return op.Where(op.Or(op.Less(x, 0.0), op.IsNaN(x)), math.nan, value)


# ---------------------------------------------------------------- J and Y
def _near_j(op: OpBuilder, x: Value, order: int) -> Value:
    """Return J(x) for abs(x) <= 25: cos(n t - x sin t) / pi summed over [0, pi] (A&S 9.1.21)."""
    weights = (np.sin(_ANGLES) if order else np.ones(len(_ANGLES))) / len(_ANGLES)
    phase = op.Mul(op.unsqueeze(x, [-1]), op.const(np.sin(_ANGLES)))
    return weighted_sum(op, op.Sin(phase) if order else op.Cos(phase), weights)


def _near_y(op: OpBuilder, x: Value, order: int) -> Value:
    """Return Y(x) for 0 < x <= 25 by Neumann's series (A&S 9.1.88) and its derivative.

    The series is one of J of even orders; their integrals have the same points, so that the
    series can be summed into the weights.
    """
    k = np.arange(1, 37)[:, None]
    weights = ((-1.0) ** k * np.cos(2 * k * _ANGLES) / k).sum(0) / len(_ANGLES)
    logarithm = op.Add(op.Log(op.Mul(x, 0.5)), _EULER)
    phase = op.Mul(op.unsqueeze(x, [-1]), op.const(np.sin(_ANGLES)))
    if order == 0:
        rest = weighted_sum(op, op.Cos(phase), weights)
        main = op.Mul(logarithm, _near_j(op, x, 0))
    else:
        rest = weighted_sum(op, op.Sin(phase), weights * np.sin(_ANGLES))
        main = op.Sub(op.Mul(logarithm, _near_j(op, x, 1)), op.Div(_near_j(op, x, 0), x))
    return op.Mul(op.Sub(main, op.Mul(rest, 2.0)), 2 / math.pi)


def _far_j_and_y(op: OpBuilder, x: Value, order: int) -> tuple[Value, Value]:
    """Return J(x) and Y(x) for x >= 25 by Hankel's asymptotic series (A&S 9.2.5 to 9.2.10)."""
    terms = [1.0]
    for m in range(1, 20):
        terms.append(terms[-1] * (4 * order**2 - (2 * m - 1) ** 2) / (8 * m))
    signs = [(-1.0) ** (m // 2) * c for m, c in enumerate(terms)]
    inverse = op.Reciprocal(op.Max(x, _FAR))
    square = op.Mul(inverse, inverse)
    p = power_series(op, square, signs[0::2])
    q = op.Mul(power_series(op, square, signs[1::2]), inverse)
    angle = op.Sub(x, (0.5 * order + 0.25) * math.pi)
    sine, cosine = op.Sin(angle), op.Cos(angle)
    front = op.Sqrt(op.Mul(inverse, 2 / math.pi))
    j = op.Mul(front, op.Sub(op.Mul(p, cosine), op.Mul(q, sine)))
    y = op.Mul(front, op.Add(op.Mul(p, sine), op.Mul(q, cosine)))
    return j, y


@lowers("aten.special_bessel_j0.default", "prims.bessel_j0.default", order=0)
@lowers("aten.special_bessel_j1.default", "prims.bessel_j1.default", order=1)
def first_kind(op: OpBuilder, self: Value, *, order: int) -> Value:
    """J(x)."""
    (x,) = in_double(op, self)
    size = op.Abs(x)
    near = _near_j(op, op.Min(size, _FAR), order)
    value = op.Where(op.Less(size, _FAR), near, _far_j_and_y(op, size, order)[0])
    return op.Mul(value, op.Sign(x)) if order else value


@lowers("aten.special_bessel_y0.default", order=0)
@lowers("aten.special_bessel_y1.default", order=1)
def second_kind(op: OpBuilder, self: Value, *, order: int) -> Value:
    """Y(x)."""
    (x,) = in_double(op, self)
    near = _near_y(op, op.Min(x, _FAR), order)
    value = op.Where(op.Less(x, _FAR), near, _far_j_and_y(op, x, order)[1])
    value = op.Where(op.Equal(x, 0.0), -math.inf, value)
    return op.Where(op.Less(x, 0.0), math.nan, value)


# ---------------------------------------------------------------------- the Airy function
@lowers("prims.spherical_bessel_j0.default")
def prims_spherical_j0(op: OpBuilder, self: Value) -> Value:
    """sin(x) / x; 1 at 0, 0 at infinity."""
    (x,) = in_double(op, self)
    value = op.Where(op.Equal(x, 0.0), op.like(x, 1.0), op.Div(op.Sin(x), x))
    return op.Where(op.IsInf(x), op.like(x, 0.0), value)


@lowers("aten.special_airy_ai.default")
def airy_ai(op: OpBuilder, x: Value) -> Value:
    """The Airy function Ai.

    M. Abramowitz and I. Stegun, Handbook of Mathematical Functions: the power series 10.4.2 from
    -7 to 2, sqrt(x / 3) K(2/3 x ** 1.5) / pi of order 1/3 (10.4.14) above, and the asymptotic
    series 10.4.60 below.
    """
    (x,) = in_double(op, x)
    # Where computes all branches; each gets arguments of its own range.
    middle = _power_series(op, op.Clip(x, -7.0, 2.0))
    low = _oscillating(op, op.Max(op.Neg(x), 7.0))
    high = op.Clip(x, 2.0, 1e6)
    zeta = op.Mul(op.Mul(high, op.Sqrt(high)), 2 / 3)
    decay = op.Mul(op.Sqrt(high), op.Exp(op.Neg(zeta)))
    above = op.Mul(op.Mul(scaled_k(op, zeta, 1 / 3), decay), 1 / (math.pi * math.sqrt(3.0)))
    value = op.Where(op.Less(x, -7.0), low, op.Where(op.Greater(x, 2.0), above, middle))
    return op.Where(op.Less(op.Abs(x), math.inf), value, math.nan)


def _power_series(op: OpBuilder, x: Value) -> Value:
    """Return c1 f(x) - c2 g(x), two series in x³."""
    at_zero = 1 / (3 ** (2 / 3) * math.gamma(2 / 3))
    slope = 1 / (3 ** (1 / 3) * math.gamma(1 / 3))
    f, g = [at_zero], [slope]
    for k in range(1, 30):
        f.append(f[-1] / ((3 * k - 1) * (3 * k)))
        g.append(g[-1] / ((3 * k) * (3 * k + 1)))
    cube = op.Mul(op.Mul(x, x), x)
    return op.Sub(power_series(op, cube, f), op.Mul(x, power_series(op, cube, g)))


def _oscillating(op: OpBuilder, z: Value) -> Value:
    """Return Ai(-z) for z >= 7."""
    root = op.Sqrt(z)
    zeta = op.Mul(op.Mul(z, root), 2 / 3)
    terms = [1.0]
    for k in range(1, 16):
        terms.append(terms[-1] * (6 * k - 5) * (6 * k - 3) * (6 * k - 1) / (216 * k * (2 * k - 1)))
    signs = [(-1.0) ** (k // 2) * c for k, c in enumerate(terms)]
    inverse = op.Reciprocal(zeta)
    square = op.Mul(inverse, inverse)
    even = power_series(op, square, signs[0::2])
    odd = op.Mul(power_series(op, square, signs[1::2]), inverse)
    angle = op.Add(zeta, math.pi / 4)
    wave = op.Sub(op.Mul(op.Sin(angle), even), op.Mul(op.Cos(angle), odd))
    return op.Div(op.Mul(wave, 1 / math.sqrt(math.pi)), op.Sqrt(root))
