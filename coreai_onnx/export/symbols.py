"""Names and ranges of the symbolic sizes of an exported program."""

from __future__ import annotations

from collections.abc import Mapping

import sympy
import torch
from torch.export import ExportedProgram

_UNBOUNDED = 2**31 - 1


def symbol_names(program: ExportedProgram) -> dict[sympy.Symbol, sympy.Symbol]:
    """Return a symbol with the user's name (``Dim("batch")``) for each symbol that has one."""
    shape_env = _shape_env(program)
    if shape_env is None:
        return {}
    given: dict[str, str] = getattr(shape_env, "source_name_to_debug_name", {})
    renamed: dict[sympy.Symbol, sympy.Symbol] = {}
    taken: set[str] = set()
    for original, sources in shape_env.var_to_sources.items():
        # Sizes that turned out equal are all written with one of their symbols.
        symbol = shape_env.replace(original)
        names = [given.get(_source_name(source), "") for source in sources]
        name = next((n for n in names if n.isidentifier() and n not in taken), None)
        if name is not None and isinstance(symbol, sympy.Symbol) and symbol not in renamed:
            taken.add(name)
            renamed[symbol] = sympy.Symbol(name, **_assumptions(symbol))
    return renamed


def range_constraints(
    program: ExportedProgram, names: Mapping[sympy.Symbol, sympy.Symbol]
) -> dict[str, dict[str, int]]:
    """Return the bounds of each symbolic size that has any: ``{"batch": {"min": 1, "max": 8}}``."""
    result: dict[str, dict[str, int]] = {}
    for expression, bounds in program.range_constraints.items():
        name = str(expression.xreplace(dict(names)))
        entry = {}
        if bounds.lower.is_number and _finite(bounds.lower) and int(bounds.lower) > 0:
            entry["min"] = int(bounds.lower)
        if _finite(bounds.upper):
            entry["max"] = int(bounds.upper)
        if entry:
            result[name] = entry
    return result


def _finite(bound: sympy.Expr) -> bool:
    return bool(bound.is_Integer) and abs(int(bound)) < _UNBOUNDED


def _source_name(source: object) -> str:
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)


def _assumptions(symbol: sympy.Symbol) -> dict[str, bool]:
    return {"integer": True, "positive": True} if symbol.is_positive else {"integer": True}


def _shape_env(program: ExportedProgram) -> torch.fx.experimental.symbolic_shapes.ShapeEnv | None:
    """Return the symbols' environment; it hangs on any symbolic size of any node."""
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch._subclasses.FakeTensor) and value.fake_mode.shape_env:
            return value.fake_mode.shape_env
    return None
