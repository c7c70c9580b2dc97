"""The parts of floating-point numbers: exponent, mantissa, and their bits as integers; hashes.

Opsets below 26 have no op that reinterprets bits, so they are computed from the number: a
floating-point number is sign * m * 2 ** e with 0.5 <= m < 1 (C's ``frexp``), which IEEE 754 stores
as e + bias - 1 above the fraction 2 m - 1, or as a multiple of the smallest number if e is too low.
All of it is exact in float64 and int64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.loops import final_state
from coreai_onnx.lower.nodes.numerics import is_negative, with_sign_of
from coreai_onnx.lower.nodes.promotion import promote
from coreai_onnx.lower.nodes.values import (
    Value,
    dims_of,
    dtype_of,
    is_float,
    numel,
    rank_of,
    set_dims,
    wrap_all,
)
from coreai_onnx.lower.walk.registry import lowers

INF, NAN = float("inf"), float("nan")


@dataclass(frozen=True)
class Layout:
    """The IEEE 754 layout of a dtype.

    Attributes:
        exponent: Bits of the exponent.
        fraction: Bits of the fraction.
        integer: The signed integer of the same width.
    """

    exponent: int
    fraction: int
    integer: torch.dtype

    @property
    def bias(self) -> int:
        """The exponent bias."""
        return (1 << (self.exponent - 1)) - 1

    @property
    def smallest(self) -> float:
        """The smallest number above zero."""
        return float(2.0 ** (1 - self.bias - self.fraction))

    @property
    def infinity(self) -> int:
        """The bits of +inf."""
        return ((1 << self.exponent) - 1) << self.fraction

    @property
    def sign(self) -> int:
        """The value of the sign bit in the integer."""
        return -(1 << (self.exponent + self.fraction))


LAYOUTS = {
    torch.float16: Layout(5, 10, torch.int16),
    torch.bfloat16: Layout(8, 7, torch.int16),
    torch.float32: Layout(8, 23, torch.int32),
    torch.float64: Layout(11, 52, torch.int64),
}


def parts_of(op: OpBuilder, size: Value) -> tuple[Value, Value]:
    """Return m and e, both float64, of positive finite float64 numbers; undefined for 0."""
    two, none = op.like(size, 2.0), op.like(size, 0.0)
    low = op.Less(size, 2.0**-1000)
    normal = op.Where(low, op.Mul(size, 2.0**64), size)
    guess = op.Add(op.Floor(op.Div(op.Log(normal), 0.6931471805599453)), 1.0)
    # In two factors, because 2 ** -guess may be out of range.
    half = op.Floor(op.Mul(guess, 0.5))
    down = op.Mul(op.Pow(two, op.Neg(half)), normal)
    mantissa = op.Mul(down, op.Pow(two, op.Sub(half, guess)))
    # The logarithm is rounded, so that the guess may be one off near powers of two.
    high, small = op.GreaterOrEqual(mantissa, 1.0), op.Less(mantissa, 0.5)
    step = op.Where(high, 1.0, op.Where(small, -1.0, none))
    exponent = op.Add(guess, step)
    mantissa = op.Mul(mantissa, op.Pow(two, op.Neg(step)))
    return mantissa, op.Sub(exponent, op.Where(low, 64.0, none))


@lowers("aten.frexp.Tensor", "prims.frexp.default")
def frexp(op: OpBuilder, self: Value) -> tuple[Value, Value]:
    """Mantissa in [0.5, 1) with the sign of self, and exponent; (x, 0) for 0, inf and NaN."""
    x = op.cast(self, torch.float64)
    size = op.Abs(x)
    plain = op.And(op.Greater(size, 0.0), op.Less(size, INF))
    mantissa, exponent = parts_of(op, op.Where(plain, size, 1.0))
    mantissa = op.Where(plain, mantissa, size)
    exponent = op.Where(plain, exponent, 0.0)
    return with_sign_of(op, mantissa, x), op.cast(exponent, torch.int32)


def magnitude_bits(op: OpBuilder, size: Value, layout: Layout) -> Value:
    """Return the bits of non-negative float64 numbers, as int64."""
    plain = op.And(op.Greater(size, 0.0), op.Less(size, INF))
    mantissa, exponent = parts_of(op, op.Where(plain, size, 1.0))
    biased = op.Add(exponent, float(layout.bias - 1))
    fraction = op.Mul(op.Sub(op.Mul(mantissa, 2.0), 1.0), float(1 << layout.fraction))
    normal = op.Add(
        op.Mul(op.cast(biased, torch.int64), 1 << layout.fraction), op.cast(fraction, torch.int64)
    )
    low = op.Where(op.LessOrEqual(biased, 0.0), size, op.const(0.0, torch.float64))
    # In two factors: 1 / smallest overflows for float64.
    raised = op.Mul(op.Mul(low, 2.0**-400 / layout.smallest), 2.0**400)
    subnormal = op.cast(op.Round(raised), torch.int64)
    bits = op.Where(op.Less(biased, 0.5), subnormal, normal)
    bits = op.Where(op.Equal(size, 0.0), 0, bits)
    bits = op.Where(op.Equal(size, INF), layout.infinity, bits)
    # torch writes quiet NaNs, with the highest bit of the fraction set.
    quiet = layout.infinity | 1 << (layout.fraction - 1)
    return op.Where(op.IsNaN(size), quiet, bits)


def magnitude_from_bits(op: OpBuilder, bits: Value, layout: Layout) -> Value:
    """Return the float64 numbers with these bits (int64, without a sign)."""
    unit = 1 << layout.fraction
    biased = op.cast(op.Div(bits, unit), torch.float64)
    fraction = op.cast(op.Mod(bits, unit), torch.float64)
    power = op.Pow(op.like(biased, 2.0), op.Sub(biased, float(layout.bias)))
    normal = op.Mul(op.Add(op.Mul(fraction, 1.0 / unit), 1.0), power)
    number = op.Where(op.Equal(biased, 0.0), op.Mul(fraction, layout.smallest), normal)
    number = op.Where(op.Equal(bits, layout.infinity), INF, number)
    return op.Where(op.Greater(bits, layout.infinity), NAN, number)


def bits_of(op: OpBuilder, x: Value) -> Value:
    """Return the bits of floating-point numbers as the signed integer of the same width."""
    layout = LAYOUTS[dtype_of(x)]
    wide = op.cast(x, torch.float64)
    bits = magnitude_bits(op, op.Abs(wide), layout)
    bits = op.Where(is_negative(op, wide), op.Add(bits, layout.sign), bits)
    return op.cast(bits, layout.integer)


def from_bits(op: OpBuilder, bits: Value, dtype: torch.dtype) -> Value:
    """Return the floating-point numbers with the bits of a signed integer of the same width."""
    layout = LAYOUTS[dtype]
    wide = op.cast(bits, torch.int64)
    below = op.Less(wide, 0)
    size = magnitude_from_bits(op, op.Where(below, op.Sub(wide, layout.sign), wide), layout)
    sign = op.Where(below, op.const(-1.0, torch.float64), 1.0)
    return op.cast(op.Mul(size, sign), dtype)


@lowers("aten.nextafter.default", "prims.nextafter.default")
def nextafter(op: OpBuilder, self: Value, other: Value) -> Value:
    """The number next to self in the direction of other: its bits incremented or decremented."""
    self, other = promote(op, self, other)
    layout = LAYOUTS[dtype_of(self)]
    x, y = op.cast(self, torch.float64), op.cast(other, torch.float64)
    bits = magnitude_bits(op, op.Abs(x), layout)
    zero = op.Equal(x, 0.0)
    # The bits without the sign are in the order of the magnitudes: one more is away from zero.
    away = op.Or(zero, op.Equal(op.Greater(x, 0.0), op.Greater(y, x)))
    bits = op.Add(bits, op.Where(away, op.const(1), -1))
    size = magnitude_from_bits(op, bits, layout)
    moved = with_sign_of(op, size, op.Where(zero, y, x))
    moved = op.Where(op.Equal(x, y), y, moved)
    undefined = op.Or(op.IsNaN(x), op.IsNaN(y))
    return op.cast(op.Where(undefined, NAN, moved), dtype_of(self))


# ---------------------------------------------------------------------- hashes
@lowers("aten.hash_tensor.default")
def hash_tensor(
    op: OpBuilder, self: Value, dim: Sequence[int] = (), *, keepdim: bool = False
) -> Value:
    """The exclusive or of the elements over axes, as int64 or as float64 bits."""
    dims, axes = dims_of(self), wrap_all(dim, rank_of(self))
    kept = [a for a in range(len(dims)) if a not in axes]
    bits = bits_of(op, op.cast(self, torch.float64)) if is_float(self) else self
    turned = op.transpose(op.cast(bits, torch.int64), [*axes, *kept])
    sizes = tuple(dims[a] for a in kept)
    rows = op.reshape(turned, [numel([dims[a] for a in axes]), *sizes])
    start = set_dims(op.expand(op.const(0), list(sizes)), sizes)

    # ONNX has no reduction by exclusive or.
    def step(op: OpBuilder, state: list[Value], part: list[Value]) -> list[Value]:
        return [set_dims(op.BitwiseXor(state[0], part[0]), sizes)]

    (result,) = final_state(op, [rows], 0, [start], step)
    return op.unsqueeze(op.cast(result, torch.uint64), axes) if keepdim and dims else result
