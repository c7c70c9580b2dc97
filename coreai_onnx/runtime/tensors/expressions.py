"""Arithmetic and conditions on sizes in the metadata of a model: ``(seq % 8) == 0``."""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction

from coreai_onnx.model.metadata import RELATION_LIMIT

# Files may come from anyone, so that texts are parsed and never given to eval. There is no power
# and no shift: a short text could ask for a number that fills the memory.
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {
    "max": max,
    "min": min,
    "Max": max,
    "Min": min,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
}
_ARITHMETIC = re.compile(rf"[\w\s.,()+\-*/%<>=!]{{1,{RELATION_LIMIT}}}")
_UNREADABLE = (
    ArithmeticError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""Exceptions of Python's parser and arithmetic for texts that are invalid or nested too deeply."""


def evaluate(expression: str, sizes: Mapping[str, int]) -> int | None:
    """Return the value of a dim expression, or None if it is invalid or has unknown names."""
    try:
        return _value(_parsed(expression), sizes)
    except _UNREADABLE:
        return None


def evaluated(dims: Iterable[int | str | None], sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """Return the sizes of dims, or None if one is unknown, invalid or has unknown names."""
    values = [dim if isinstance(dim, int) else _size(dim or "", sizes) for dim in dims]
    known_sizes = tuple(size for size in values if size is not None)
    return known_sizes if len(known_sizes) == len(values) else None


def _size(dim: str, sizes: Mapping[str, int]) -> int | None:
    return sizes[dim] if dim in sizes else evaluate(dim, sizes)


def holds(condition: str, sizes: Mapping[str, int]) -> bool | None:
    """Return whether a condition is true, or None if it is invalid or has unknown names."""
    try:
        node = _parsed(condition)
        if not (isinstance(node, ast.Compare) and len(node.ops) == 1):
            return None
        compare = _COMPARISONS[type(node.ops[0])]
        left, right = (_value(n, sizes) for n in (node.left, node.comparators[0]))
    except _UNREADABLE:
        return None
    return compare(left, right)


# As for `_parsed`.
@functools.lru_cache(1024)
def names_in(expression: str) -> tuple[str, ...]:
    """Return the names of sizes in an expression, in order."""
    try:
        nodes = list(ast.walk(_parsed(expression)))
    except _UNREADABLE:
        return ()
    called = {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    names = [n for n in nodes if isinstance(n, ast.Name) and n.id not in called]
    return tuple(dict.fromkeys(n.id for n in sorted(names, key=lambda n: n.col_offset)))


def solve(expression: str, value: int) -> tuple[str, Fraction] | None:
    """Return the name in a linear expression of one name, and its solution for a value.

    ``solve("2*seq + 1", 7)`` is ``("seq", 3)``; None if the expression is not of that form.
    """
    names = names_in(expression)
    if len(names) != 1:
        return None
    (name,) = names
    # three points show whether the expression is linear
    at = [evaluate(expression, {name: size}) for size in (0, 1, 1000)]
    start, one, thousand = at
    if start is None or one is None or thousand is None:
        return None
    slope = one - start
    if slope == 0 or thousand != start + 1000 * slope:
        return None
    return name, Fraction(value - start, slope)


# Each call of a session evaluates the same few texts.
@functools.lru_cache(1024)
def _parsed(expression: str) -> ast.expr:
    if not _ARITHMETIC.fullmatch(expression):
        raise SyntaxError(f"not an arithmetic expression, or too long: {expression:.80}")
    return ast.parse(expression, mode="eval").body


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return sizes[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, sizes)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, sizes), _value(right, sizes))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return _FUNCTIONS[name](*(_value(a, sizes) for a in args))
    raise LookupError(ast.dump(node))
