"""Conditions on the sizes of the inputs that the program requires."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import sympy
import torch
from torch.export import ExportedProgram

from coreai_onnx.export.compat.torch_names import (
    FloorDiv,
    Max,
    Min,
    Mod,
    PythonMod,
    ShapeEnv,
    bound_sympy,
)
from coreai_onnx.export.guards import is_of_the_model, place_of, python_text, shape_env
from coreai_onnx.model.dependencies import OPERATORS_CONDITION
from coreai_onnx.model.metadata import Relation

_COMPARISONS = (sympy.Eq, sympy.Ne, sympy.Ge, sympy.Gt, sympy.Le, sympy.Lt)
_DIVISIONS = (FloorDiv, Mod, PythonMod)
_ARITHMETIC = (sympy.Add, sympy.Mul, Max, Min, sympy.Symbol)
# A lower bound up to this only excludes the sizes 0 and 1.
_SMALL = 2


def relations(
    program: ExportedProgram, names: Mapping[sympy.Symbol, sympy.Symbol]
) -> list[Relation]:
    """Return the conditions on sizes that torch found, beyond the bounds of each size.

    These are the guards of the trace and the checks (``torch._check``) that the program makes on
    sizes of its inputs. Two kinds are left out: conditions that follow from torch's specialization
    of sizes 0 and 1, and conditions on numbers that the program computes from data.

    Args:
        program: The program.
        names: New names of its symbols.
    """
    env = shape_env(program)
    if env is None:
        return []
    symbols_of_inputs = {symbol for symbols in _input_sizes(program) for symbol in symbols}
    by_text: dict[str, Relation] = {}
    for condition in _conditions(env):
        # torch may have found two sizes equal after it added the guard.
        expression = env.replace(condition.expression)
        if not (expression.free_symbols and expression.free_symbols <= symbols_of_inputs):
            continue
        if not _is_plain(expression) or _follows_from_bounds(expression, env):
            continue
        if condition.by_torch and _is_habit(expression, deferred=condition.deferred):
            continue
        text = python_text(expression.xreplace(dict(names)))
        by_text.setdefault(text, Relation(text, condition.source))
    return list(by_text.values())


@dataclass(frozen=True)
class _Condition:
    """A condition as torch represents it.

    Attributes:
        expression: Over symbols of the program.
        source: The line of the model; empty if unknown.
        by_torch: Whether an operator requires it, not the model itself.
        deferred: Whether torch made it a runtime assertion.
    """

    expression: sympy.Basic
    source: str
    by_torch: bool
    deferred: bool = False


def _conditions(env: ShapeEnv) -> Iterator[_Condition]:
    """Return the guards and the runtime assertions."""
    for guard in env.guards:
        place, by_model = place_of(guard.sloc), is_of_the_model(guard.sloc)
        yield _Condition(guard.expr, place.source if place else "", not by_model)
    for check in (c for checks in env.deferred_runtime_asserts.values() for c in checks):
        yield _Condition(check.expr, "", OPERATORS_CONDITION.is_in(check.msg), deferred=True)


def _input_sizes(program: ExportedProgram) -> Iterator[set[sympy.Symbol]]:
    for node in program.graph.nodes:
        if node.op != "placeholder":
            return
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            for size in value.shape:
                if isinstance(size, torch.SymInt):
                    yield set(size.node.expr.free_symbols)


def _is_plain(expression: sympy.Basic) -> bool:
    """Whether a condition compares integer expressions with at most one division."""
    parts = list(sympy.preorder_traversal(expression))
    divisions = sum(isinstance(x, _DIVISIONS) for x in parts)
    allowed = (*_COMPARISONS, *_ARITHMETIC, *_DIVISIONS, sympy.Integer)
    return (
        isinstance(expression, _COMPARISONS)
        and divisions <= 1
        and all(isinstance(x, allowed) for x in parts)
    )


def _follows_from_bounds(expression: sympy.Basic, env: ShapeEnv) -> bool:
    bounds = bound_sympy(expression, env.var_to_range)
    return bool(bounds.is_singleton() and bounds.lower == sympy.true)


def _is_habit(expression: sympy.Basic, *, deferred: bool) -> bool:
    """Whether an operator's condition only selects between implementations with equal results.

    This is so if it excludes sizes 0 and 1, or equal sizes. Among runtime assertions, only
    equations are certain to be real requirements.
    """
    if isinstance(expression, sympy.Eq):
        return False
    if deferred or isinstance(expression, sympy.Ne):
        return True
    left, right = expression.args
    bound = left if isinstance(expression, sympy.Lt | sympy.Le) else right
    strict = isinstance(expression, sympy.Gt | sympy.Lt)
    return bool(bound.is_Integer) and int(bound) + strict <= _SMALL
