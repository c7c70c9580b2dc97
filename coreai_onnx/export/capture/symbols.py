"""Names and ranges of the symbolic sizes of an exported program."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from coreai_onnx.export.compat.torch_names import ShapeEnv
from coreai_onnx.export.guards import dim_names, shape_env, source_name

_UNBOUNDED = 2**31 - 1
_NEITHER_ZERO_NOR_ONE = 2


def symbol_names(program: ExportedProgram) -> dict[sympy.Symbol, sympy.Symbol]:
    """Return a symbol with a readable name for each symbol of the inputs.

    This is the user's name (``Dim("batch")``) if there is one, also for a ``Dim`` that only occurs
    in a derived dim (``2 * batch``), and otherwise the input and the axis, ``ids_dim_1``.
    """
    env = shape_env(program)
    if env is None:
        return {}
    renamed = _given_names(env)
    taken = {str(s) for s in renamed.values()}
    for symbol, name in _axes(program):
        if symbol not in renamed and name not in taken:
            taken.add(name)
            renamed[symbol] = sympy.Symbol(name, **_assumptions(symbol))
    return renamed


def _given_names(env: ShapeEnv) -> dict[sympy.Symbol, sympy.Symbol]:
    """Return the symbols that belong to a ``Dim`` of the user."""
    names_of_dims = dim_names(env)
    renamed: dict[sympy.Symbol, sympy.Symbol] = {}
    taken: set[str] = set()
    for original, sources in env.var_to_sources.items():
        # torch represents sizes that are equal by one of their symbols.
        symbol = env.replace(original)
        source_names = map(source_name, sources)
        # for a Dim that is not itself the size of an input, the source is its name
        names = [
            names_of_dims.get(name, name if name.isidentifier() else "") for name in source_names
        ]
        name = next((n for n in names if n.isidentifier() and n not in taken), None)
        if name is not None and isinstance(symbol, sympy.Symbol) and symbol not in renamed:
            taken.add(name)
            renamed[symbol] = sympy.Symbol(name, **_assumptions(symbol))
    return renamed


def _axes(program: ExportedProgram) -> list[tuple[sympy.Symbol, str]]:
    """Return the symbols that are the size of an input's axis, named by the input and the axis."""
    specs = program.graph_signature.input_specs
    placeholders = (n for n in program.graph.nodes if n.op == "placeholder")
    axes: list[tuple[sympy.Symbol, str]] = []
    for spec, node in zip(specs, placeholders, strict=True):
        value = node.meta.get("val")
        if spec.kind != InputKind.USER_INPUT or not isinstance(value, torch.Tensor):
            continue
        for axis, size in enumerate(value.shape):
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                axes.append((size.node.expr, f"{node.name}_dim_{axis}"))
    return axes


def range_constraints(
    program: ExportedProgram, names: Mapping[sympy.Symbol, sympy.Symbol]
) -> dict[str, dict[str, int]]:
    """Return the bounds of symbolic sizes: ``{"batch": {"min": 1, "max": 8}}``.

    torch assumes that every size without a ``Dim`` is neither 0 nor 1, and does not check it. This
    assumption is not a bound here.
    """
    env = shape_env(program)
    named = _given_names(env) if env is not None else {}
    result: dict[str, dict[str, int]] = {}
    for expression, bounds in program.range_constraints.items():
        name = str(expression.xreplace(dict(names)))
        entry = {}
        if _finite(bounds.lower) and int(bounds.lower) > _assumed_least(expression, named.keys()):
            entry["min"] = int(bounds.lower)
        if _finite(bounds.upper):
            entry["max"] = int(bounds.upper)
        if entry:
            result[name] = entry
    return result


def _assumed_least(expression: sympy.Expr, user_symbols: Collection[sympy.Symbol]) -> float:
    """Return the lower bound that torch assumes for a size by default."""
    if expression.free_symbols <= set(user_symbols):
        return 0
    # The bound of an expression follows from those of its symbols.
    return _NEITHER_ZERO_NOR_ONE if expression.is_Symbol else float("inf")


def _finite(bound: sympy.Expr) -> bool:
    return bool(bound.is_Integer) and abs(int(bound)) < _UNBOUNDED


def _assumptions(symbol: sympy.Symbol) -> dict[str, bool]:
    return {"integer": True, "positive": True} if symbol.is_positive else {"integer": True}
