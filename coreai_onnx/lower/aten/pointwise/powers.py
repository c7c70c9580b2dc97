"""Powers, roots and hypotenuses."""

from __future__ import annotations

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.inference import broadcast_dims
from coreai_onnx.lower.nodes.loops import any_true, repeat_while
from coreai_onnx.lower.nodes.numerics import widen
from coreai_onnx.lower.nodes.promotion import promote, promote_to_float
from coreai_onnx.lower.nodes.values import Number, Value, dims_of, is_bool, is_float
from coreai_onnx.lower.walk.registry import lowers


@lowers("prims.pow.default", renamed={"exponent": "other"})
@lowers("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def pow(op: OpBuilder, self: Value | Number, exponent: Value | Number) -> Value:
    """self ** exponent; integer powers wrap around."""
    base, power = promote(op, self, exponent)
    if not is_float(base):
        if isinstance(exponent, int):
            return _repeated_product(op, base, exponent)
        return _integer_power(op, base, power)
    simple = isinstance(exponent, int | float) and _simple_power(op, base, exponent)
    return simple or op.Pow(base, power)


def _simple_power(op: OpBuilder, x: Value, exponent: Number) -> Value | None:
    """Return a power that has its own op; a square remains Pow, which fusions match."""
    if exponent == 1:
        return x
    if exponent == 0.5:
        return op.Sqrt(x)
    if exponent == -0.5:
        return op.Reciprocal(op.Sqrt(x))
    if exponent == -1:
        return op.Reciprocal(x)
    return None


def _repeated_product(op: OpBuilder, x: Value, exponent: int) -> Value:
    """Return an integer power by squaring and multiplying; torch allows no negative exponent."""
    if exponent == 0:
        return op.Add(op.Mul(x, 0), 1)
    result: Value | None = None
    square = x
    while exponent:
        if exponent & 1:
            result = square if result is None else op.Mul(result, square)
        exponent >>= 1
        if exponent:
            square = op.Mul(square, square)
    return result if result is not None else x


def _integer_power(op: OpBuilder, x: Value, exponent: Value) -> Value:
    """Return x ** exponent by squaring; 0 for a negative exponent unless abs(x) is 1."""
    dims = broadcast_dims(dims_of(x), dims_of(exponent))
    start = [op.expand(op.like(x, 1), dims), x, op.Abs(exponent)]

    def unfinished(inner: OpBuilder, state: list[Value]) -> Value:
        return any_true(inner, inner.Greater(state[2], 0))

    def step(inner: OpBuilder, state: list[Value]) -> list[Value]:
        result, square, left = state
        odd = inner.Equal(inner.Mod(left, 2), 1)
        result = inner.Where(odd, inner.Mul(result, square), result)
        return [result, inner.Mul(square, square), inner.Div(left, 2)]

    result = repeat_while(op, start, unfinished, step)[0]
    vanishes = op.And(op.Less(exponent, 0), op.Not(op.Equal(op.Abs(x), 1)))
    return op.Where(vanishes, 0, result)


@lowers("aten.square.default")
def square(op: OpBuilder, self: Value) -> Value:
    """self * self; an integer for booleans."""
    if is_bool(self):
        return self
    return op.Pow(self, op.like(self, 2)) if is_float(self) else op.Mul(self, self)


@lowers("aten.sqrt.default", "prims.sqrt.default")
def sqrt(op: OpBuilder, self: Value) -> Value:
    """The square root; NaN below zero."""
    return op.Sqrt(*promote_to_float(op, self))


@lowers("aten.rsqrt.default", "prims.rsqrt.default")
def rsqrt(op: OpBuilder, self: Value) -> Value:
    """1 / sqrt(self)."""
    return op.Reciprocal(op.Sqrt(*promote_to_float(op, self)))


@lowers("prims.cbrt.default")
def cbrt(op: OpBuilder, self: Value) -> Value:
    """The real cube root, with the sign of self."""
    (x,) = widen(op, self)
    # Pow of a negative number and a fraction is NaN.
    return op.Mul(op.Sign(x), op.Pow(op.Abs(x), 1 / 3))


@lowers("aten.reciprocal.default", "prims.reciprocal.default")
def reciprocal(op: OpBuilder, self: Value) -> Value:
    """1 / self, floating-point also for integers."""
    return op.Reciprocal(*promote_to_float(op, self))


@lowers("aten.hypot.default", "prims.hypot.default")
def hypot(op: OpBuilder, self: Value, other: Value) -> Value:
    """sqrt(self² + other²), scaled by the larger side, so that no square overflows."""
    a, b = (op.Abs(x) for x in widen(op, self, other))
    large, small = op.Max(a, b), op.Min(a, b)
    ratio = op.Div(small, large)
    length = op.Mul(large, op.Sqrt(op.Add(op.Mul(ratio, ratio), 1.0)))
    # Equal sides include zeros, whose ratio is NaN.
    length = op.Where(op.Or(op.Equal(large, 0.0), op.Equal(a, b)), op.Mul(large, 2**0.5), length)
    infinite = op.Or(op.IsInf(a), op.IsInf(b))
    return op.Where(infinite, float("inf"), length)
