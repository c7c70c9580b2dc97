"""Computes symbolic sizes: each expression of the exported program once, on demand.

A symbolic integer is never lowered node by node. The program gives its expression (``2*s0 + 1``).
The table records where each symbol can be read (an axis of an input, the size of a data-dependent
result) and creates the nodes for an expression when a lowering first requests it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import sympy

from coreai_onnx.errors import ConversionError
from coreai_onnx.export.compat.torch_names import FloorDiv
from coreai_onnx.lower.expressions import BINARY, UNARY
from coreai_onnx.lower.values import Dim, Value, set_dims

if TYPE_CHECKING:
    from coreai_onnx.lower.builder import OpBuilder


@dataclass(frozen=True)
class Axis:
    """A symbol is the size of this axis of a value."""

    value: Value
    axis: int


class DimTable:
    """The sources of symbols, and the values of the expressions computed so far.

    Expressions are computed as 1-D values of one element, which concatenate to shapes without
    further nodes; 0-d values are derived from them on request.

    Args:
        parent: Table of the enclosing graph, whose values are visible here.
    """

    def __init__(self, parent: DimTable | None = None) -> None:
        """Start without symbols."""
        self._parent = parent
        self._sources: dict[sympy.Symbol, Axis | Value] = {}
        self._vectors: dict[sympy.Basic, Value] = {}
        self._scalars: dict[sympy.Basic, Value] = {}

    def bind_axis(self, symbol: Any, value: Value, axis: int) -> None:
        """Bind a symbol to the size of an axis; the first binding is kept."""
        if isinstance(symbol, sympy.Symbol) and self.find(symbol) is None:
            self._sources[symbol] = Axis(value, axis)

    def bind_scalar(self, symbol: sympy.Symbol, value: Value) -> None:
        """Bind a symbol to the element of a 0-d value."""
        self._sources[symbol] = value

    def bind_axes(self, value: Value, dims: Sequence[Dim]) -> None:
        """Bind every dim of a value: symbols directly, expressions by solving for their symbol."""
        for axis, dim in enumerate(dims):
            if isinstance(dim, sympy.Symbol):
                self.bind_axis(dim, value, axis)
        for axis, dim in enumerate(dims):
            self._bind_derived(dim, value, axis)

    def _bind_derived(self, dim: Dim, value: Value, axis: int) -> None:
        """Bind a symbol to an axis whose size is a linear expression of it (``2*s + 1``)."""
        if not isinstance(dim, sympy.Expr) or len(dim.free_symbols) != 1:
            return
        (symbol,) = dim.free_symbols
        if self.find(symbol) is not None or self.find_vector(symbol) is not None:
            return
        size = sympy.Symbol(f"{value.name}.axis{axis}", integer=True, nonnegative=True)
        try:
            solutions = sympy.solve(sympy.Eq(dim, size), symbol)
        except NotImplementedError:
            return
        if len(solutions) == 1:
            self._sources[size] = Axis(value, axis)
            numerator, denominator = sympy.fraction(sympy.together(solutions[0]))

            self._derived[symbol] = (
                FloorDiv(numerator, denominator) if denominator != 1 else numerator
            )

    @property
    def _derived(self) -> dict[sympy.Symbol, sympy.Expr]:
        return self.__dict__.setdefault("_derived_expressions", {})

    def knows(self, symbol: sympy.Symbol) -> bool:
        """Whether a symbol can be read."""
        return self.find(symbol) is not None or self.find_derived(symbol) is not None

    def vector(self, op: OpBuilder, dims: Sequence[Dim | Value]) -> Value:
        """Return the dims as one 1-D int64 value."""
        fixed = [d for d in dims if isinstance(d, int)]
        if len(fixed) == len(dims):
            return op.const(fixed, ir.DataType.INT64)
        parts: list[Value] = []
        known: list[int] = []
        for d in dims:
            if isinstance(d, int):
                known.append(d)
                continue
            if known:
                parts.append(op.const(known, ir.DataType.INT64))
                known = []
            parts.append(self._part(op, d))
        if known:
            parts.append(op.const(known, ir.DataType.INT64))
        result: Value = parts[0] if len(parts) == 1 else op.Concat(*parts, axis=0)
        if len(parts) > 1 and not any(isinstance(d, ir.Value) for d in dims):
            result.meta["holds"] = tuple(dims)
        return set_dims(result, (len(dims),))

    def _part(self, op: OpBuilder, d: Dim | Value) -> Value:
        if not isinstance(d, ir.Value):
            return self.element(op, d)
        wide = op.cast(d, ir.DataType.INT64)
        return wide if wide.meta.get("dims") == (1,) else op.Reshape(wide, op.const([1]))

    def scalar(self, op: OpBuilder, x: Dim) -> Value:
        """Return an expression as a 0-d value."""
        if isinstance(x, int):
            return op.const(x, ir.DataType.INT64)
        found = self.find_scalar(x)
        if found is None:
            source = self.find(x) if isinstance(x, sympy.Symbol) else None
            if isinstance(source, ir.Value):
                found = source
            elif x.is_number:
                found = op.const(_number(x))
            else:
                found = op.squeeze(self.element(op, x), [0])
            self._scalars[x] = set_dims(found, ())
        return found

    def element(self, op: OpBuilder, x: sympy.Basic) -> Value:
        """Return an expression as a 1-D value of one element."""
        found = self.find_vector(x)
        if found is None:
            found = set_dims(self._compute(op, x), (1,))
            self._vectors[x] = found
        return found

    def _compute(self, op: OpBuilder, x: sympy.Basic) -> Value:
        if isinstance(x, sympy.Symbol):
            return self._read(op, x)
        if x.is_number or x in (sympy.true, sympy.false):
            return op.const([_number(x)])
        if isinstance(x, sympy.Mul) and x.args[0] == -1 and len(x.args) == 2:
            negative: Value = op.Neg(self.element(op, x.args[1]))
            return negative
        name = type(x).__name__
        if name in UNARY and len(x.args) == 1:
            return UNARY[name](op, self.element(op, x.args[0]), x)
        if name in BINARY:
            rule = BINARY[name]
            parts = [self.element(op, a) for a in x.args]
            result = parts[0]
            for part in parts[1:]:
                result = rule(op, result, part, x)
            return result
        raise ConversionError(
            f"symbolic expression {x}: {name} has no ONNX form",
            op.scope.where,
            "make the size static, or compute it with tensors",
        )

    def _read(self, op: OpBuilder, symbol: sympy.Symbol) -> Value:
        source = self.find(symbol)
        if isinstance(source, Axis):
            end = source.axis + 1
            size: Value = op.Shape(source.value, start=source.axis, end=end)
            return size
        if source is not None:
            return op.unsqueeze(source, [0])
        derived = self.find_derived(symbol)
        if derived is not None:
            return self.element(op, derived)
        raise ConversionError(
            f"symbolic size {symbol} is used, but no input or earlier result has it",
            op.scope.where,
            "this is a defect of coreai_onnx: please report it with the exported program",
        )

    def find(self, symbol: sympy.Symbol) -> Axis | Value | None:
        """Return the source of a symbol, here or in an enclosing graph."""
        if symbol in self._sources:
            return self._sources[symbol]
        return self._parent.find(symbol) if self._parent is not None else None

    def find_derived(self, symbol: sympy.Symbol) -> sympy.Expr | None:
        """Return the expression for a symbol that is not itself the size of an axis."""
        if symbol in self._derived:
            return self._derived[symbol]
        return self._parent.find_derived(symbol) if self._parent is not None else None

    def find_vector(self, x: sympy.Basic) -> Value | None:
        """Return the 1-D value of an expression if it has been computed."""
        if x in self._vectors:
            return self._vectors[x]
        return self._parent.find_vector(x) if self._parent is not None else None

    def find_scalar(self, x: sympy.Basic) -> Value | None:
        """Return the 0-d value of an expression if it has been computed."""
        if x in self._scalars:
            return self._scalars[x]
        return self._parent.find_scalar(x) if self._parent is not None else None


def _number(x: sympy.Basic) -> int | float | bool:
    if x in (sympy.true, sympy.false):
        return bool(x)
    return int(x) if x.is_Integer else float(x)
