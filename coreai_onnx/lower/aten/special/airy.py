"""The Airy function and the spherical Bessel function of order 0, computed in float64."""

from __future__ import annotations

import math

from coreai_onnx.lower.aten.pointwise.numerics import in_double, power_series
from coreai_onnx.lower.aten.special.bessel import scaled_k
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value
from coreai_onnx.lower.walk.registry import lowers


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
