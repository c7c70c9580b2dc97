"""Logic on truth values, and on the bits of integers."""

from __future__ import annotations

import onnx_ir as ir
import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.inference import broadcast_dims
from coreai_onnx.lower.nodes.loops import any_true, repeat_while
from coreai_onnx.lower.nodes.numerics import remainder_of_truncation
from coreai_onnx.lower.nodes.promotion import promote
from coreai_onnx.lower.nodes.values import Number, Value, dims_of, dtype_of, is_bool
from coreai_onnx.lower.walk.registry import lowers

_BITWISE = {"and": ("And", "BitwiseAnd"), "or": ("Or", "BitwiseOr"), "xor": ("Xor", "BitwiseXor")}
_BITS = {
    torch.uint8: 8,
    torch.int8: 8,
    torch.int16: 16,
    torch.uint16: 16,
    torch.int32: 32,
    torch.uint32: 32,
    torch.int64: 64,
    torch.uint64: 64,
}


def logical(op: OpBuilder, self: Value, other: Value, *, op_type: str) -> Value:
    """Combine the truth values of two tensors; nonzero elements and NaN are true."""
    return op.node(op_type, *(op.cast(x, torch.bool) for x in (self, other)))


def bitwise(
    op: OpBuilder, self: Value | Number, other: Value | Number, *, on_bools: str, on_integers: str
) -> Value:
    """Combine the bits of two integer tensors, or two truth values."""
    a, b = promote(op, self, other)
    return op.node(on_bools if is_bool(a) else on_integers, a, b)


for _name, (_on_bools, _on_integers) in _BITWISE.items():
    lowers(f"aten.logical_{_name}.default", op_type=_on_bools)(logical)
    lowers(
        f"aten.bitwise_{_name}.Tensor",
        f"aten.bitwise_{_name}.Scalar",
        f"aten.bitwise_{_name}.Scalar_Tensor",
        f"aten.__{_name}__.Tensor",
        f"aten.__{_name}__.Scalar",
        f"prims.bitwise_{_name}.default",
        on_bools=_on_bools,
        on_integers=_on_integers,
    )(bitwise)


@lowers("aten.logical_not.default")
def logical_not(op: OpBuilder, self: Value) -> Value:
    """Whether an element is zero."""
    return op.Not(op.cast(self, torch.bool))


@lowers("aten.bitwise_not.default", "prims.bitwise_not.default")
def bitwise_not(op: OpBuilder, self: Value) -> Value:
    """Every bit inverted."""
    return op.Not(self) if is_bool(self) else op.BitwiseNot(self)


# ---------------------------------------------------------------- shifts
@lowers(
    "aten.bitwise_left_shift.Tensor",
    "aten.bitwise_left_shift.Tensor_Scalar",
    "aten.bitwise_left_shift.Scalar_Tensor",
    "aten.__lshift__.Tensor",
    "aten.__lshift__.Scalar",
    "prims.shift_left.default",
)
def left_shift(op: OpBuilder, self: Value | Number, other: Value | Number) -> Value:
    """self * 2 ** other, wrapping; 0 if other is negative or not below the number of bits."""
    a, b = promote(op, self, other)
    dtype, bits = dtype_of(a), _BITS[dtype_of(a)]
    if dtype == torch.uint8 and isinstance(other, int) and 0 <= other < bits:
        return op.BitShift(a, op.like(a, other), direction="LEFT")
    if isinstance(other, int):
        factor = 2**other if 0 <= other < bits else 0
        # 2 ** 63 is out of range for int64; its negative has the same bits.
        power = torch.tensor(factor if factor < 2**63 else -factor).to(dtype)
        return op.Mul(a, op.const(power))
    shifted = _from_bits(op, op.BitShift(_to_bits(op, a), _amount(op, b), direction="LEFT"), dtype)
    return op.Where(_outside(op, b, bits), op.like(a, 0), shifted)


@lowers(
    "aten.bitwise_right_shift.Tensor",
    "aten.bitwise_right_shift.Tensor_Scalar",
    "aten.bitwise_right_shift.Scalar_Tensor",
    "aten.__rshift__.Tensor",
    "aten.__rshift__.Scalar",
    "prims.shift_right_arithmetic.default",
)
def right_shift(op: OpBuilder, self: Value | Number, other: Value | Number) -> Value:
    """floor(self / 2 ** other); 0 or -1 by sign if other is negative or too large."""
    a, b = promote(op, self, other)
    dtype, bits = dtype_of(a), _BITS[dtype_of(a)]
    if dtype == torch.uint8 and isinstance(other, int) and 0 <= other < bits:
        return op.BitShift(a, op.like(a, other), direction="RIGHT")
    if isinstance(other, int) and 0 <= other < bits - 1:
        power = op.like(a, 2**other)
        return op.Div(op.Sub(a, op.Mod(a, power)), power)  # cannot wrap around
    last = op.like(b, bits - 1)
    b = op.Where(_outside(op, b, bits), last, b)
    if not dtype.is_signed:
        shifted = op.BitShift(_to_bits(op, a), _amount(op, b), direction="RIGHT")
        shifted = _from_bits(op, shifted, dtype)
        return op.Where(_outside(op, promote(op, a, other)[1], bits), op.like(a, 0), shifted)
    # BitShift fills with zeros. The complement of a negative number is shifted, so that ones remain
    # after the second complement.
    below = op.Less(a, op.like(a, 0))
    magnitude = op.Where(below, op.BitwiseNot(a), a)
    shifted = op.BitShift(_to_bits(op, magnitude), _amount(op, b), direction="RIGHT")
    shifted = _from_bits(op, shifted, dtype)
    return op.Where(below, op.BitwiseNot(shifted), shifted)


def _outside(op: OpBuilder, b: Value, bits: int) -> Value:
    """Whether a shift is negative or drops every bit."""
    return op.Or(op.Less(b, op.like(b, 0)), op.GreaterOrEqual(b, op.like(b, bits)))


def _to_bits(op: OpBuilder, a: Value) -> Value:
    """Return the bits as uint64, the dtype that every shift kernel supports."""
    return op.cast(op.cast(a, ir.DataType.INT64), ir.DataType.UINT64)


def _amount(op: OpBuilder, b: Value) -> Value:
    """Return the shift reduced to below 64; the caller must handle larger ones."""
    wide = op.cast(b, ir.DataType.INT64)
    return op.cast(op.Clip(wide, 0, 63), ir.DataType.UINT64)


def _from_bits(op: OpBuilder, bits: Value, dtype: torch.dtype) -> Value:
    return op.cast(op.cast(bits, ir.DataType.INT64), dtype)


# ---------------------------------------------------------------- divisors
@lowers("aten.gcd.default", "prims.gcd.default")
def gcd(op: OpBuilder, self: Value, other: Value) -> Value:
    """Greatest common divisor, by Euclid's algorithm on all elements at once."""
    a, b = promote(op, self, other)
    dims = broadcast_dims(dims_of(a), dims_of(b))
    start = [op.expand(op.Abs(x), dims) for x in (b, a)]

    def unfinished(inner: OpBuilder, state: list[Value]) -> Value:
        return any_true(inner, inner.Not(inner.Equal(state[1], 0)))

    def step(inner: OpBuilder, state: list[Value]) -> list[Value]:
        large, small = state
        done = inner.Equal(small, 0)
        # Elements that are done wait for the others; they must not divide by zero.
        rest = remainder_of_truncation(inner, large, inner.Where(done, 1, small))
        return [inner.Where(done, large, small), inner.Where(done, 0, rest)]

    return repeat_while(op, start, unfinished, step)[0]


@lowers("aten.lcm.default")
def lcm(op: OpBuilder, self: Value, other: Value) -> Value:
    """Least common multiple: abs(self / gcd * other), 0 if both are 0."""
    a, b = promote(op, self, other)
    divisor = gcd(op, a, b)
    divisor = op.Where(op.Equal(divisor, 0), 1, divisor)
    if dtype_of(a).itemsize < 4:  # torch multiplies narrow integers in 32 bits
        a, b, divisor = (op.cast(x, torch.int32) for x in (a, b, divisor))
    return op.Abs(op.Mul(op.Div(a, divisor), b))
