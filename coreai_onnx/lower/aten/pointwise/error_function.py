"""The error function, its complement and inverses, and the normal distribution."""

from __future__ import annotations

import math

from coreai_onnx.lower.aten.pointwise.unary_math import log1p_of
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.numerics import horner, in_double, is_double
from coreai_onnx.lower.nodes.promotion import promote_to_float
from coreai_onnx.lower.nodes.values import Value
from coreai_onnx.lower.walk.registry import lowers

# Rational approximations of S. L. Moshier, Cephes Mathematical Library, ndtr.c (double precision):
# erf(x) = x T(x²) / U(x²) for |x| <= 1; erfc(x) = exp(-x²) P(x) / Q(x) for 1 <= x < 8 and
# exp(-x²) R(x) / S(x) above.
_T = (
    9.60497373987051638749e0,
    9.00260197203842689217e1,
    2.23200534594684319226e3,
    7.00332514112805075473e3,
    5.55923013010394962768e4,
)
_U = (
    1.0,
    3.35617141647503099647e1,
    5.21357949780152679795e2,
    4.59432382970980127987e3,
    2.26290000613890934246e4,
    4.92673942608635921086e4,
)
_P = (
    2.46196981473530512524e-10,
    5.64189564831068821977e-1,
    7.46321056442269912687e0,
    4.86371970985681366614e1,
    1.96520832956077098242e2,
    5.26445194995477358631e2,
    9.34528527171957607540e2,
    1.02755188689515710272e3,
    5.57535335369399327526e2,
)
_Q = (
    1.0,
    1.32281951154744992508e1,
    8.67072140885989742329e1,
    3.54937778887819891062e2,
    9.75708501743205489753e2,
    1.82390916687909736289e3,
    2.24633760818710981792e3,
    1.65666309194161350182e3,
    5.57535340817727675546e2,
)
_R = (
    5.64189583547755073984e-1,
    1.27536670759978104416e0,
    5.01905042251180477414e0,
    6.16021097993053585195e0,
    7.40974269950448939160e0,
    2.97886665372100240670e0,
)
_S = (
    1.0,
    2.26052863220117276590e0,
    9.39603524938001434673e0,
    1.20489539808096656605e1,
    1.70814450747565897222e1,
    9.60896809063285878198e0,
    3.36907645100081516050e0,
)


def erf_of(op: OpBuilder, x: Value) -> Value:
    """Return the error function; float64 by Cephes' approximations."""
    if not is_double(x):
        return op.Erf(x)
    tail = op.Sub(1.0, op.Mul(_scaled_tail(op, op.Abs(x)), op.Exp(op.Neg(op.Mul(x, x)))))
    tail = op.Where(op.Less(x, 0.0), op.Neg(tail), tail)
    return op.Where(op.LessOrEqual(op.Abs(x), 1.0), _small(op, x), tail)


def _small(op: OpBuilder, x: Value) -> Value:
    """Return erf for abs(x) <= 1."""
    x = op.Clip(x, -1.0, 1.0)
    square = op.Mul(x, x)
    return op.Mul(x, op.Div(horner(op, square, _T), horner(op, square, _U)))


def _scaled_tail(op: OpBuilder, x: Value) -> Value:
    """Return erfcx(x) = exp(x²) erfc(x) for x >= 1 (values below 1 are clamped to 1)."""
    # Where computes both branches; clipping keeps the unused one from overflowing.
    middle = op.Clip(x, 1.0, 8.0)
    far = op.Clip(x, 8.0, 1e50)
    near = op.Div(horner(op, middle, _P), horner(op, middle, _Q))
    distant = op.Div(horner(op, far, _R), horner(op, far, _S))
    return op.Where(op.Less(x, 8.0), near, distant)


@lowers("aten.erf.default", "aten.special_erf.default", "prims.erf.default")
def erf(op: OpBuilder, self: Value) -> Value:
    """2 / sqrt(pi) times the integral of exp(-t²) from 0 to x."""
    return erf_of(op, promote_to_float(op, self)[0])


def erfc_of(op: OpBuilder, x: Value) -> Value:
    """Return 1 - erf(x) of float64 numbers, accurate in the tail."""
    tail = op.Mul(_scaled_tail(op, op.Abs(x)), op.Exp(op.Neg(op.Mul(x, x))))
    tail = op.Where(op.Less(x, 0.0), op.Sub(2.0, tail), tail)
    return op.Where(op.LessOrEqual(op.Abs(x), 1.0), op.Sub(1.0, _small(op, x)), tail)


def erfcx_of(op: OpBuilder, x: Value) -> Value:
    """Return exp(x²) erfc(x) of float64 numbers."""
    grown = op.Exp(op.Mul(x, x))
    scaled = _scaled_tail(op, op.Abs(x))
    scaled = op.Where(op.Less(x, 0.0), op.Sub(op.Mul(grown, 2.0), scaled), scaled)
    scaled = op.Where(op.Greater(x, 1e7), op.Div(1 / math.sqrt(math.pi), x), scaled)
    near = op.Mul(grown, op.Sub(1.0, _small(op, x)))
    return op.Where(op.LessOrEqual(op.Abs(x), 1.0), near, scaled)


@lowers("aten.erfc.default", "aten.special_erfc.default", "prims.erfc.default")
def erfc(op: OpBuilder, self: Value) -> Value:
    """1 - erf(x)."""
    return erfc_of(op, in_double(op, self)[0])


@lowers("aten.special_erfcx.default", "prims.erfcx.default")
def erfcx(op: OpBuilder, self: Value) -> Value:
    """exp(x²) * erfc(x)."""
    return erfcx_of(op, in_double(op, self)[0])


@lowers("aten.special_ndtr.default")
def ndtr(op: OpBuilder, self: Value) -> Value:
    """The cumulative normal distribution: erfc(-x / sqrt(2)) / 2."""
    (x,) = in_double(op, self)
    return op.Mul(erfc_of(op, op.Mul(x, -math.sqrt(0.5))), 0.5)


@lowers("aten.special_log_ndtr.default")
def log_ndtr(op: OpBuilder, self: Value) -> Value:
    """log(ndtr(x)); below -1 as log(erfcx(-x / sqrt(2)) / 2) - x² / 2."""
    (x,) = in_double(op, self)
    t = op.Mul(x, math.sqrt(0.5))
    low = op.Sub(op.Log(op.Mul(erfcx_of(op, op.Neg(t)), 0.5)), op.Mul(t, t))
    low = op.Where(op.Equal(x, -math.inf), x, low)
    high = log1p_of(op, op.Mul(erfc_of(op, t), -0.5))
    return op.Where(op.Less(x, -1.0), low, high)


@lowers("aten.erfinv.default", "aten.special_erfinv.default", "prims.erf_inv.default")
def erfinv(op: OpBuilder, self: Value) -> Value:
    """The inverse of erf: ndtri((1 + self) / 2) / sqrt(2), computed from the nearer tail."""
    (y,) = in_double(op, self)
    size = op.Abs(y)
    half_tail = op.Mul(op.Sub(1.0, size), 0.5)
    x = op.Mul(_upper_quantile(op, half_tail), math.sqrt(0.5))
    slope = op.Mul(op.Exp(op.Neg(op.Mul(x, x))), 2 / math.sqrt(math.pi))
    # 1 - |y| loses the last digits of a small y; one of Newton's steps on erf restores them.
    finer = op.Sub(x, op.Div(op.Sub(erf_of(op, x), size), slope))
    x = op.Where(op.Less(size, 0.5), finer, x)
    x = op.Where(op.Equal(size, 1.0), math.inf, x)
    return op.Mul(x, op.Sign(y))


@lowers("aten.special_ndtri.default", "prims.ndtri.default")
def ndtri(op: OpBuilder, self: Value) -> Value:
    """The quantile of the normal distribution: the x whose ndtr is self."""
    (p,) = in_double(op, self)
    tail = op.Min(p, op.Sub(1.0, p))
    x = _upper_quantile(op, tail)
    x = op.Where(op.Equal(tail, 0.0), math.inf, x)
    return op.Where(op.Less(p, 0.5), op.Neg(x), x)


def _upper_quantile(op: OpBuilder, p: Value) -> Value:
    """Return the upper p-quantile of the normal distribution, for p <= 1/2.

    M. Abramowitz and I. Stegun, Handbook of Mathematical Functions, 26.2.23 (error 4.5e-4), and
    two of Halley's steps on Q(x) - p, with Q / phi (Mills' ratio) by erfcx, so that tiny p keep
    their digits.
    """
    log_p = op.Log(p)
    t = op.Sqrt(op.Mul(log_p, -2.0))
    top = horner(op, t, (0.010328, 0.802853, 2.515517))
    bottom = horner(op, t, (0.001308, 0.189269, 1.432788, 1.0))
    x = op.Sub(t, op.Div(top, bottom))
    for _ in range(2):
        scaled = op.Mul(erfcx_of(op, op.Mul(x, math.sqrt(0.5))), 0.5)
        log_q = op.Sub(op.Log(scaled), op.Mul(op.Mul(x, x), 0.5))
        excess = op.Mul(scaled, op.Sub(1.0, op.Exp(op.Sub(log_p, log_q))))
        step = op.Mul(excess, math.sqrt(2 * math.pi))
        x = op.Add(x, op.Div(step, op.Sub(1.0, op.Mul(op.Mul(x, step), 0.5))))
    return x
