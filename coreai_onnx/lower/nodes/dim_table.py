"""Where symbolic sizes can be read, and the values of the sizes computed so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from coreai_onnx.export.compat.torch_names import FloorDiv
from coreai_onnx.lower.nodes.values import Dim, Value


@dataclass(frozen=True)
class Axis:
    """A symbol is the size of this axis of a value."""

    value: Value
    axis: int


class DimTable:
    """The sources of symbols, and the values of the expressions computed so far.

    Expressions are computed as 1-D values of one element, which concatenate to shapes without
    further nodes; 0-d values are derived from them on request (``lower/nodes/shapes.py``).

    Args:
        parent: Table of the enclosing graph, whose values are visible here.
    """

    def __init__(self, parent: DimTable | None = None) -> None:
        """Start without symbols."""
        self._parent = parent
        self._sources: dict[sympy.Symbol, Axis | Value] = {}
        self._derived: dict[sympy.Symbol, sympy.Expr] = {}
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
        # Symbols come first: to solve an expression is slow, and needless if another axis is the
        # symbol.
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
        # sympy cannot solve every expression, for example not remainders.
        except NotImplementedError:
            return
        # Several solutions would leave open which one is the size.
        if len(solutions) == 1:
            self._sources[size] = Axis(value, axis)
            numerator, denominator = sympy.fraction(sympy.together(solutions[0]))
            self._derived[symbol] = (
                # The division is exact; FloorDiv keeps it in integers.
                FloorDiv(numerator, denominator) if denominator != 1 else numerator
            )

    def knows(self, symbol: sympy.Symbol) -> bool:
        """Whether a symbol can be read."""
        return self.find(symbol) is not None or self.find_derived(symbol) is not None

    def keep_vector(self, x: sympy.Basic, value: Value) -> None:
        """Store the 1-D value of an expression."""
        self._vectors[x] = value

    def keep_scalar(self, x: sympy.Basic, value: Value) -> None:
        """Store the 0-d value of an expression."""
        self._scalars[x] = value

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
