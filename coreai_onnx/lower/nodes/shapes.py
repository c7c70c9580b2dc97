"""Computes symbolic sizes: each expression of the exported program once, on demand.

A symbolic integer is never lowered node by node. The program gives its expression (``2*s0 + 1``).
The scope's table records where each symbol can be read (an axis of an input, the size of a
data-dependent result). The nodes for an expression are created when a lowering first requests it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import sympy

from coreai_onnx.errors import ConversionError
from coreai_onnx.lower.nodes.dim_table import Axis
from coreai_onnx.lower.nodes.expressions import BINARY, UNARY
from coreai_onnx.lower.nodes.node_builder import NodeBuilder
from coreai_onnx.lower.nodes.values import Dim, Value, set_dims


def vector(op: NodeBuilder, dims: Sequence[Dim | Value]) -> Value:
    """Return the dims as one 1-D int64 value."""
    fixed = [d for d in dims if isinstance(d, int)]
    if len(fixed) == len(dims):
        return op.const(fixed, ir.DataType.INT64)
    parts: list[Value] = []
    # Sizes that are known and adjacent become one constant, which leaves Concat fewer inputs.
    numbers: list[int] = []
    for d in dims:
        if isinstance(d, int):
            numbers.append(d)
            continue
        if numbers:
            parts.append(op.const(numbers, ir.DataType.INT64))
            numbers = []
        parts.append(_part(op, d))
    if numbers:
        parts.append(op.const(numbers, ir.DataType.INT64))
    result = parts[0] if len(parts) == 1 else op.Concat(*parts, axis=0)
    # A single part is shared by all uses of its expression, also those that are not shapes.
    if len(parts) > 1 and not any(isinstance(d, ir.Value) for d in dims):
        result.meta["holds"] = tuple(dims)
    return set_dims(result, (len(dims),))


def _part(op: NodeBuilder, d: Dim | Value) -> Value:
    if not isinstance(d, ir.Value):
        return element(op, d)
    wide = op.cast(d, ir.DataType.INT64)
    return wide if wide.meta.get("dims") == (1,) else op.Reshape(wide, op.const([1]))


def scalar(op: NodeBuilder, x: Dim) -> Value:
    """Return an expression as a 0-d value."""
    if isinstance(x, int):
        return op.const(x, ir.DataType.INT64)
    table = op.scope.dims
    size = table.find_scalar(x)
    if size is None:
        source = table.find(x) if isinstance(x, sympy.Symbol) else None
        if isinstance(source, ir.Value):
            size = source
        elif x.is_number:
            size = _number(op, x)
        else:
            size = op.squeeze(element(op, x), [0])
        table.keep_scalar(x, set_dims(size, ()))
    return size


def element(op: NodeBuilder, x: sympy.Basic) -> Value:
    """Return an expression as a 1-D value of one element."""
    size = op.scope.dims.find_vector(x)
    if size is None:
        size = set_dims(_compute(op, x), (1,))
        op.scope.dims.keep_vector(x, size)
    return size


def _compute(op: NodeBuilder, x: sympy.Basic) -> Value:
    if isinstance(x, sympy.Symbol):
        return _read(op, x)
    if x.is_number or x in (sympy.true, sympy.false):
        return _number(op, x, [1])
    # sympy writes a difference as a + (-1) * b; this saves a constant.
    if isinstance(x, sympy.Mul) and x.args[0] == -1 and len(x.args) == 2:
        return op.Neg(element(op, x.args[1]))
    name = type(x).__name__
    if name in UNARY and len(x.args) == 1:
        return UNARY[name](op, element(op, x.args[0]), x)
    if name in BINARY:
        rule = BINARY[name]
        parts = [element(op, a) for a in x.args]
        result = parts[0]
        for part in parts[1:]:
            result = rule(op, result, part, x)
        return result
    raise ConversionError(
        f"symbolic expression {x}: {name} has no ONNX form",
        op.scope.where,
        "make the size static, or compute it with tensors",
    )


def _read(op: NodeBuilder, symbol: sympy.Symbol) -> Value:
    source = op.scope.dims.find(symbol)
    if isinstance(source, Axis):
        return op.Shape(source.value, start=source.axis, end=source.axis + 1)
    if source is not None:
        return op.unsqueeze(source, [0])
    derived = op.scope.dims.find_derived(symbol)
    if derived is not None:
        return element(op, derived)
    raise ConversionError(
        f"symbolic size {symbol} is used, but no input or earlier result has it",
        op.scope.where,
        "this is a defect of coreai_onnx: please report it with the exported program",
    )


def _number(op: NodeBuilder, x: sympy.Basic, sizes: Sequence[int] = ()) -> Value:
    """Return a number; Python's floats, which symbolic sizes are computed with, are doubles."""
    if x in (sympy.true, sympy.false):
        return op.const(np.full(sizes, bool(x)))
    return op.const(np.full(sizes, int(x) if x.is_Integer else float(x)))
