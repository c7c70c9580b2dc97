"""Examples that are too small for a model's general case: which size is large enough."""

from __future__ import annotations

from collections.abc import Callable

import sympy

from coreai_onnx.export.compat.torch_names import ShapeEnv
from coreai_onnx.export.guards import dim_names, guards_in, readable, source_name

# Bounds the search where a dim has no maximum; the search doubles the size in each step.
_LARGEST = 2**20
# Bounds the sizes tried on either side of a limit: each substitutes into a sympy expression.
_SAMPLES = 64


def larger_examples(message: str, env: ShapeEnv) -> list[str]:
    """Return advice on sizes of the example for the guards that a message of torch lists.

    A model that works in chunks of 256 takes another branch for an example of 12 than for one of
    300. A guard that holds for every size up to a limit, and for none above it, is such a branch:
    an example above the limit covers the general case.

    Args:
        message: torch's message, with guards as text.
        env: The shape environment of the failed export.
    """
    limits: dict[sympy.Symbol, int] = {}
    for guard in guards_in(message, env):
        symbols = guard.expr.free_symbols & env.backed_var_to_val.keys()
        if len(symbols) == len(guard.expr.free_symbols) == 1:
            (symbol,) = symbols
            limit = _limit(guard.expr, symbol, env)
            if limit is not None:
                limits[symbol] = max(limit, limits.get(symbol, 0))
    return [_advice(symbol, limit, env) for symbol, limit in limits.items()]


def _advice(symbol: sympy.Symbol, limit: int, env: ShapeEnv) -> str:
    text = source_name(env.var_to_sources[symbol][0])
    names = dim_names(env)
    size = f"{names[text]} ({readable(text)})" if text in names else readable(text)
    return (
        f"the example has {size} = {env.backed_var_to_val[symbol]}, and the model has a special "
        f"case for sizes up to {limit}: for larger sizes, give an example of at least {limit + 1}"
    )


def _limit(condition: sympy.Basic, symbol: sympy.Symbol, env: ShapeEnv) -> int | None:
    """Return the largest size up to which a condition holds, if it holds for none above it."""

    def holds(size: int) -> bool:
        return bool(condition.subs(symbol, size))

    example, most = int(env.backed_var_to_val[symbol]), env.var_to_range[symbol].upper
    largest = int(most) if most.is_Integer else _LARGEST
    limit = _last(holds, example, min(largest, _LARGEST))
    # From 2 on, since torch assumes that no dynamic size is 0 or 1.
    if limit is None or not all(map(holds, range(2, min(limit, _SAMPLES)))):
        return None
    above = range(limit + 1, min(limit + _SAMPLES, largest + 1))
    return None if any(map(holds, above)) else limit


def _last(holds: Callable[[int], bool], low: int, most: int) -> int | None:
    """Return the last size before the first one that violates a condition, or None.

    Args:
        holds: The condition.
        low: A size for which it holds.
        most: The largest size.
    """
    high = min(2 * low, most)
    while holds(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
