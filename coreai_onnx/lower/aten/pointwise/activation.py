"""Activation functions that act on elements."""

from __future__ import annotations

import math

from coreai_onnx.errors import LoweringError
from coreai_onnx.lower.aten.pointwise.error_function import erf_of
from coreai_onnx.lower.aten.pointwise.unary_math import expm1_of, log1p_of
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.numerics import is_double, widen
from coreai_onnx.lower.nodes.promotion import promote
from coreai_onnx.lower.nodes.values import (
    Number,
    Value,
    dtype_of,
    is_bool,
    is_float,
)
from coreai_onnx.lower.walk.registry import lowers

_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946
"""α and scale for which mean 0 and variance 1 are a fixed point (Klambauer et al. 2017)."""


# ---------------------------------------------------------------- rectifiers
@lowers("aten.relu.default")
def relu(op: OpBuilder, self: Value) -> Value:
    """max(self, 0)."""
    if is_bool(self):
        return self
    return op.Relu(self) if is_float(self) else op.Max(self, 0)


@lowers("aten.relu6.default", min_val=0, max_val=6)
@lowers("aten.hardtanh.default")
def hardtanh(op: OpBuilder, self: Value, min_val: Number = -1, max_val: Number = 1) -> Value:
    """self clamped to [min_val, max_val], in the dtype of self."""
    number = float if is_float(self) else int
    return op.Clip(self, number(min_val), number(max_val))


@lowers("aten.threshold.default")
def threshold(op: OpBuilder, self: Value, threshold: Number, value: Number) -> Value:
    """self above the threshold, value elsewhere; NaN is kept."""
    limit, other = promote(op, threshold, value, dtype=dtype_of(self))
    return op.Where(op.LessOrEqual(self, limit), other, self)


@lowers("aten.leaky_relu.default")
def leaky_relu(op: OpBuilder, self: Value, negative_slope: Number = 0.01) -> Value:
    """self above zero, negative_slope * self below."""
    if not is_double(self):
        return op.LeakyRelu(self, alpha=float(negative_slope))
    return op.Where(op.Greater(self, 0.0), self, op.Mul(self, negative_slope))


@lowers("aten.rrelu.default")
def rrelu(
    op: OpBuilder,
    self: Value,
    lower: Number = 0.125,
    upper: Number = 1 / 3,
    *,
    training: bool = False,
) -> Value:
    """Leaky relu with the mean slope.

    Raises:
        LoweringError: In training mode, where every element has a random slope.
    """
    return _rrelu(op, self, lower, upper, training=training)


@lowers("aten.rrelu_with_noise_functional.default")
def rrelu_with_noise_functional(
    op: OpBuilder,
    self: Value,
    noise: Value,
    lower: Number = 0.125,
    upper: Number = 1 / 3,
    *,
    training: bool = False,
) -> tuple[Value, Value]:
    """Leaky relu with the mean slope, and the unchanged noise."""
    return _rrelu(op, self, lower, upper, training=training), noise


def _rrelu(op: OpBuilder, x: Value, lower: Number, upper: Number, *, training: bool) -> Value:
    if training:
        raise LoweringError(
            "rrelu in training: onnxruntime has no op that draws a random slope for each element",
            op.scope.where,
            "call model.eval() before the export",
        )
    return leaky_relu(op, x, (lower + upper) / 2)


@lowers("aten._prelu_kernel.default")
def prelu_kernel(op: OpBuilder, self: Value, weight: Value) -> Value:
    """self above zero, weight * self below, weight broadcast."""
    if is_double(self):
        return op.Where(op.Greater(self, 0.0), self, op.Mul(self, weight))
    return op.PRelu(self, weight)


# ---------------------------------------------------------------- exponential rectifiers
@lowers("aten.elu.default")
def elu(
    op: OpBuilder, self: Value, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1
) -> Value:
    """scale * self above zero, scale * alpha * (exp(input_scale * self) - 1) below."""
    if scale == 1 and input_scale == 1 and not is_double(self):
        return op.Elu(self, alpha=float(alpha))
    return _elu(op, self, float(alpha), float(scale), float(input_scale))


def _elu(op: OpBuilder, x: Value, alpha: float, scale: float, input_scale: float) -> Value:
    (wide,) = widen(op, x)
    below = expm1_of(op, op.Mul(wide, input_scale))
    return op.Where(op.Greater(wide, 0.0), op.Mul(wide, scale), op.Mul(below, alpha * scale))


@lowers("aten.celu.default")
def celu(op: OpBuilder, self: Value, alpha: Number = 1.0) -> Value:
    """self above zero, alpha * (exp(self / alpha) - 1) below."""
    if is_double(self):
        return _elu(op, self, float(alpha), 1.0, 1.0 / alpha)
    # ONNX defines Celu for float32 only.
    return op.Celu(*widen(op, self), alpha=float(alpha))


@lowers("aten.selu.default")
def selu(op: OpBuilder, self: Value) -> Value:
    """1.0507 * (self above zero, 1.6733 * (exp(self) - 1) below)."""
    if is_double(self):
        return _elu(op, self, _SELU_ALPHA, _SELU_SCALE, 1.0)
    return op.Selu(self, alpha=_SELU_ALPHA, gamma=_SELU_SCALE)


@lowers("aten.softplus.default")
def softplus(op: OpBuilder, self: Value, beta: Number = 1, threshold: Number = 20) -> Value:
    """log(1 + exp(beta * self)) / beta; self where beta * self is above the threshold."""
    (x,) = widen(op, self)
    scaled = x if beta == 1 else op.Mul(x, beta)
    soft = softplus_of(op, scaled)
    soft = soft if beta == 1 else op.Div(soft, beta)
    if threshold >= 20:  # above it the two differ by less than 3e-9
        return soft
    return op.Where(op.Greater(scaled, op.like(x, threshold)), x, soft)


def softplus_of(op: OpBuilder, x: Value) -> Value:
    """Return log(1 + exp(x)) without overflow."""
    if not is_double(x):
        return op.Softplus(x)
    # The exponent is never positive, so that Exp cannot overflow.
    return op.Add(op.Max(x, 0.0), log1p_of(op, op.Exp(op.Neg(op.Abs(x)))))


# ---------------------------------------------------------------- gates
@lowers("aten.gelu.default")
def gelu(op: OpBuilder, self: Value, *, approximate: str = "none") -> Value:
    """x * Phi(x) = x / 2 * (1 + erf(x / sqrt(2))), or its tanh approximation."""
    (x,) = widen(op, self)
    if approximate == "tanh":
        cube = op.Mul(op.Mul(op.Mul(x, x), x), 0.044715)
        inner = op.Mul(op.Add(x, cube), math.sqrt(2 / math.pi))
        return op.Mul(op.Mul(x, 0.5), op.Add(op.Tanh(inner), 1.0))
    bell = op.Add(erf_of(op, op.Div(x, math.sqrt(2.0))), 1.0)
    return op.Mul(op.Mul(x, bell), 0.5)


@lowers("aten.silu.default", whole=True)
def silu(op: OpBuilder, self: Value) -> Value:
    """x * sigmoid(x)."""
    (x,) = widen(op, self)
    return op.Mul(x, op.Sigmoid(x))


@lowers("aten.mish.default")
def mish(op: OpBuilder, self: Value) -> Value:
    """x * tanh(log(1 + exp(x)))."""
    (x,) = widen(op, self)
    return op.Mul(x, op.Tanh(softplus_of(op, x)))


@lowers("aten.hardsigmoid.default", whole=True)
def hardsigmoid(op: OpBuilder, self: Value) -> Value:
    """clamp(x + 3, 0, 6) / 6."""
    if is_double(self):
        return op.Div(op.Clip(op.Add(self, 3.0), 0.0, 6.0), 6.0)
    return op.HardSigmoid(self, alpha=1 / 6, beta=0.5)


@lowers("aten.hardswish.default", whole=True)
def hardswish(op: OpBuilder, self: Value) -> Value:
    """x * clamp(x + 3, 0, 6) / 6."""
    (x,) = widen(op, self)
    return op.Mul(x, hardsigmoid(op, x))


@lowers("aten.glu.default")
def glu(op: OpBuilder, self: Value, dim: int = -1) -> Value:
    """The first half of an axis, times the sigmoid of the second."""
    (x,) = widen(op, self)
    first, second = op.Split(x, axis=dim, num_outputs=2, _outputs=2)
    return op.Mul(first, op.Sigmoid(second))


@lowers("aten.log_sigmoid_forward.default")
def log_sigmoid_forward(op: OpBuilder, self: Value) -> tuple[Value, None]:
    """log(sigmoid(x)) = -log(1 + exp(-x)); the second result is for the backward pass only."""
    (x,) = widen(op, self)
    return op.Neg(softplus_of(op, op.Neg(x))), None


# ---------------------------------------------------------------- shrinks
@lowers("aten.softshrink.default")
def softshrink(op: OpBuilder, self: Value, lambd: Number = 0.5) -> Value:
    """self moved toward zero by at most lambd: x - clamp(x, -lambd, lambd)."""
    (x,) = widen(op, self)
    return op.Sub(x, op.Clip(x, -float(lambd), float(lambd)))
