"""Lowers single operations of torch's symbolic shape expressions to ONNX."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import sympy

from coreai_onnx.lower.nodes.node_builder import NodeBuilder
from coreai_onnx.lower.nodes.values import Value

Unary = Callable[[NodeBuilder, Value, sympy.Basic], Value]
Binary = Callable[[NodeBuilder, Value, Value, sympy.Basic], Value]


def _joined(op: NodeBuilder, a: Value, b: Value) -> tuple[Value, Value]:
    """Cast integer and float operands to a common dtype."""
    if a.dtype == b.dtype:
        return a, b
    # Python's floats are double precision, and ONNX takes operands of one dtype only.
    return op.cast(a, ir.DataType.DOUBLE), op.cast(b, ir.DataType.DOUBLE)


def _simple(op_type: str) -> Binary:
    def rule(op: NodeBuilder, a: Value, b: Value, _x: sympy.Basic) -> Value:
        return op.node(op_type, *_joined(op, a, b))

    return rule


def _floor_div(op: NodeBuilder, a: Value, b: Value, x: sympy.Basic) -> Value:
    """Python's //: integer Div truncates, so the remainder is subtracted first."""
    # Truncation and floor agree, so one node suffices.
    if x.args[0].is_nonnegative and x.args[1].is_positive:
        return op.Div(a, b)
    result = op.Div(op.Sub(a, op.Mod(a, b)), b)
    return result


def _true_div(op: NodeBuilder, a: Value, b: Value, _x: sympy.Basic) -> Value:
    return op.Div(op.cast(a, ir.DataType.DOUBLE), op.cast(b, ir.DataType.DOUBLE))


def _power(op: NodeBuilder, a: Value, b: Value, _x: sympy.Basic) -> Value:
    return op.Pow(a, b)


def _not_equal(op: NodeBuilder, a: Value, b: Value, _x: sympy.Basic) -> Value:
    return op.Not(op.Equal(*_joined(op, a, b)))


def _shift_left(op: NodeBuilder, a: Value, b: Value, _x: sympy.Basic) -> Value:
    # BitShift takes only unsigned integers.
    return op.Mul(a, op.Pow(op.const([2]), b))


def _shift_right(op: NodeBuilder, a: Value, b: Value, _x: sympy.Basic) -> Value:
    power = op.Pow(op.const([2]), b)
    return op.Div(op.Sub(a, op.Mod(a, power)), power)


def _round_decimal(op: NodeBuilder, a: Value, b: Value, _x: sympy.Basic) -> Value:
    """Python's round(a, b): half to even; digits before the point if b is negative."""
    wide, digits = op.cast(a, ir.DataType.DOUBLE), op.cast(b, ir.DataType.DOUBLE)
    up = op.Pow(op.like(wide, 10), op.Max(digits, 0.0))
    down = op.Pow(op.like(wide, 10), op.Max(op.Neg(digits), 0.0))
    return op.Mul(op.Div(op.Round(op.Mul(op.Div(wide, down), up)), up), down)


def _to_int(op_type: str) -> Unary:
    def rule(op: NodeBuilder, a: Value, _x: sympy.Basic) -> Value:
        wide = op.cast(a, ir.DataType.DOUBLE)
        # Without an operator, the cast to int64 itself truncates.
        rounded = op.node(op_type, wide) if op_type else wide
        return op.cast(rounded, ir.DataType.INT64)

    return rule


def _float(op_type: str) -> Unary:
    def rule(op: NodeBuilder, a: Value, _x: sympy.Basic) -> Value:
        wide = op.cast(a, ir.DataType.DOUBLE)
        return op.node(op_type, wide) if op_type else wide

    return rule


def _not(op: NodeBuilder, a: Value, _x: sympy.Basic) -> Value:
    return op.Not(a)


def _abs(op: NodeBuilder, a: Value, _x: sympy.Basic) -> Value:
    return op.Abs(a)


def _same(_op: NodeBuilder, a: Value, _x: sympy.Basic) -> Value:
    return a


UNARY: dict[str, Unary] = {
    "Not": _not,
    "Abs": _abs,
    "Identity": _same,
    "ToFloat": _float(""),
    "TruncToInt": _to_int(""),
    "FloorToInt": _to_int("Floor"),
    "CeilToInt": _to_int("Ceil"),
    "RoundToInt": _to_int("Round"),
    "floor": _to_int("Floor"),
    "ceiling": _to_int("Ceil"),
    "OpaqueUnaryFn_sqrt": _float("Sqrt"),
    "OpaqueUnaryFn_cos": _float("Cos"),
    "OpaqueUnaryFn_sin": _float("Sin"),
    "OpaqueUnaryFn_exp": _float("Exp"),
    "OpaqueUnaryFn_log": _float("Log"),
    "OpaqueUnaryFn_tanh": _float("Tanh"),
}
"""Rules for expressions with one operand, by the name of the sympy class."""

BINARY: dict[str, Binary] = {
    "Add": _simple("Add"),
    "Mul": _simple("Mul"),
    "Max": _simple("Max"),
    "Min": _simple("Min"),
    "Mod": _simple("Mod"),
    "PythonMod": _simple("Mod"),
    "Pow": _power,
    "PowByNatural": _power,
    "FloatPow": _power,
    "FloorDiv": _floor_div,
    "CleanDiv": _floor_div,
    "IntTrueDiv": _true_div,
    "FloatTrueDiv": _true_div,
    "RoundDecimal": _round_decimal,
    "LShift": _shift_left,
    "RShift": _shift_right,
    "Equality": _simple("Equal"),
    "Unequality": _not_equal,
    "StrictLessThan": _simple("Less"),
    "LessThan": _simple("LessOrEqual"),
    "StrictGreaterThan": _simple("Greater"),
    "GreaterThan": _simple("GreaterOrEqual"),
    "And": _simple("And"),
    "Or": _simple("Or"),
}
"""Rules for expressions with two or more operands, folded from the left."""
