"""Warnings and errors about dims that cannot be dynamic: the line of the model, and what helps."""

from __future__ import annotations

import inspect
import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import sympy
from torch.export import ExportedProgram

from coreai_onnx.errors import DynamicShapesError, SpecializationWarning
from coreai_onnx.export.compat.source_lines import user_lines
from coreai_onnx.export.compat.torch_names import (
    EXPORT_LOGGER,
    ConstraintViolationError,
    ShapeEnv,
    UserError,
    UserErrorType,
)
from coreai_onnx.export.compat.torch_warnings import without_graph_dumps
from coreai_onnx.export.guards import (
    FixedDim,
    dim_names,
    fixed_dims,
    guards_in,
    place_of,
    readable,
    shape_env,
    source_name,
)
from coreai_onnx.model.dependencies import (
    FIX,
    FIXES,
    FLOAT_GUARD,
    HINT_OF_ZERO_OR_ONE,
    INFINITY,
    INPUT,
    LOG_OF_ZERO_OR_ONE,
    MARKED_DYNAMIC,
    RANGE_CONFLICT,
    REASON,
)

_CLASHES = (UserErrorType.CONSTRAINT_VIOLATION, UserErrorType.DYNAMIC_DIM)
_PACKAGE = __name__.partition(".")[0]


@dataclass
class Explanation:
    """What an export reported: which sizes are fixed, and by which line of the model."""

    environments: list[ShapeEnv] = field(default_factory=list)
    zero_or_one: list[FixedDim] = field(default_factory=list)

    def warn(self, program: ExportedProgram) -> None:
        """Warn about every dim that was requested as dynamic and is fixed in the program.

        Warns:
            SpecializationWarning: One warning that lists all of them.
        """
        warn_about_fixed_dims(program, self.zero_or_one)


@contextmanager
def explained() -> Iterator[Explanation]:
    """While active, explain an export failure due to dynamic sizes in terms of the model.

    Raises:
        DynamicShapesError: If ``dynamic_shapes`` asks for more than the model allows.
    """
    explanation = Explanation()
    with user_lines() as environments, _zero_or_one(explanation), without_graph_dumps():
        explanation.environments = environments
        try:
            yield explanation
        except (UserError, ConstraintViolationError, ValueError) as error:
            if not _is_clash(error):
                raise
            raise DynamicShapesError(_reasons(str(error), environments)) from error


def _is_clash(error: Exception) -> bool:
    """Whether an export failed because of sizes that were requested as dynamic."""
    if isinstance(error, UserError):
        return error.error_type in _CLASHES
    return isinstance(error, ConstraintViolationError) or RANGE_CONFLICT.is_in(error)


def warn_about_fixed_dims(program: ExportedProgram, others: list[FixedDim] | None = None) -> None:
    """Warn about sizes of inputs that have a symbol but were specialized to a number.

    Args:
        program: The exported program.
        others: Fixed sizes that were found in another way.

    Warns:
        SpecializationWarning: One warning that lists all of them.
    """
    inputs = [str(name) for name in program.graph_signature.user_inputs]
    dims = [*(others or []), *fixed_dims(shape_env(program), inputs)]
    if not dims:
        return
    lines = ["sizes that were to be dynamic are fixed in the converted model:"]
    lines += [f"  {dim}" for dim in dims]
    advice = "make the model independent of the size there"
    if others:
        advice = "give an example of a larger size"
    lines.append(f"  {advice}, or leave the dim out of dynamic_shapes")
    warnings.warn("\n".join(lines), SpecializationWarning, stacklevel=outside())


def outside() -> int:
    """Return the ``stacklevel`` of the user's code: its distance in frames."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    return level


def _is_ours(module: str) -> bool:
    # A context manager used as a decorator adds frames of contextlib between ours.
    return module.partition(".")[0] in (_PACKAGE, "contextlib")


@contextmanager
def _zero_or_one(explanation: Explanation) -> Iterator[None]:
    """Collect the sizes 0 and 1 of examples that torch specializes, which it only logs."""
    # The logger is shared by all threads, which may export models of their own.
    thread = threading.get_ident()

    def collect(record: logging.LogRecord) -> bool:
        size = LOG_OF_ZERO_OR_ONE.pattern.match(record.getMessage())
        if size is None or record.thread != thread:
            return True
        axis = int(size["axis"]) if size["axis"] else None
        source = size["first"] + size["rest"]
        why = "because the example has that size"
        fixed = FixedDim(source, axis, "", int(size["value"]), None, why)
        explanation.zero_or_one.append(fixed)
        return False  # SpecializationWarning reports it

    logger = logging.getLogger(EXPORT_LOGGER)
    logger.addFilter(collect)
    try:
        yield
    finally:
        logger.removeFilter(collect)


_UNROLLED = (
    "  torch unrolls associative_scan for the length of the example: it cannot be dynamic\n"
    "    by {line}\n"
    "  give a fixed length, or use torch._higher_order_ops.scan, which takes every length"
)


def _is_unrolled(guard: Any) -> bool:
    """Whether a guard is on the length that ``associative_scan`` halves again and again."""
    place = place_of(guard.sloc)
    return place is not None and "associative_scan(" in place.line


def _reasons(message: str, environments: list[ShapeEnv]) -> str:
    """Return torch's reasons, each with the line of the model, and torch's suggested fixes."""
    text = FIXES.pattern.split(message, maxsplit=1)[0]
    lines = ["dynamic_shapes asks for more than the model allows"]
    # torch makes a new environment for each trace; the latest is the one that failed.
    env = environments[-1] if environments else None
    unrolled = next((g for g in env.guards if _is_unrolled(g)), None) if env else None
    if unrolled is not None:
        where = place_of(unrolled.sloc)
        return "\n".join([*lines, _UNROLLED.format(line=where.line if where else "")])
    if env is not None:
        lines += [f"  {advice}" for advice in _larger_examples(text, env)]
    for reason in dict.fromkeys(REASON.pattern.findall(text)):
        lines.append(f"  {_reason(reason, env)}")
        place = _place(reason, env) if env is not None else None
        if place:
            lines.append(f"    by {place}")
        if FLOAT_GUARD.is_in(reason):
            lines.append(
                "    write int(n * 0.25) as n // 4: torch follows integers, not int() of a float"
            )
    fixes = suggested_fixes(message)
    if fixes:
        lines.append("  torch suggests: " + ", ".join(fixes))
    # torch may word its reasons in another way in the next release.
    if len(lines) == 1:
        lines.append(f"  {message}")
    return "\n".join(lines)


def suggested_fixes(message: str) -> list[str]:
    """Return the suggested fixes in a message of torch, one per dim: ``n = Dim('n', min=2)``."""
    suggested = FIXES.pattern.split(message, maxsplit=1)[1:]
    return FIX.pattern.findall(suggested[0]) if suggested else []


def _reason(text: str, env: ShapeEnv | None) -> str:
    """Return one of torch's reasons in terms of the user's model."""
    if fixed := MARKED_DYNAMIC.pattern.match(text):
        sizes = ", ".join(
            readable(size) for size, name in dim_names(env).items() if name == fixed["name"]
        )
        which = f"{fixed['name']} ({sizes})" if sizes else readable(fixed["name"])
        value = fixed["value"]
        by = "the example" if value in ("0", "1") else "the model"
        return f"{which} is to be dynamic, but {by} fixes it at {value}{_larger(value)}"
    if hint := HINT_OF_ZERO_OR_ONE.pattern.match(text):
        size, value = re.sub(r"^\['(\w+)'\]", r"\1", hint["size"]), hint["value"]
        return f"{size} is to be dynamic, but the example fixes it at {value}{_larger(value)}"
    text = INPUT.pattern.sub(r"\1", readable(text))
    return INFINITY.pattern.sub("infinity", text).rstrip(".")


def _larger(value: str) -> str:
    return ": give an example of a larger size" if value in ("0", "1") else ""


def _place(reason: str, env: ShapeEnv) -> str:
    """Return the line of the model behind a reason; empty if torch did not record it."""
    for guard in guards_in(reason, env):
        if place := place_of(guard.sloc):
            return place.line
    names = dim_names(env)
    for symbol, origins in env.var_to_sources.items():
        texts = [source_name(s) for s in origins]
        spellings = {*texts, *(names[t] for t in texts if t in names)}
        if any(re.search(rf"(?<!\w){re.escape(t)}(?!\w)", reason) for t in spellings):
            bounds = env.var_to_range_sloc.get(symbol)
            slocs = [env.replacements_slocs.get(symbol)]
            slocs += [bounds.lower, bounds.upper] if bounds else []
            place = next(filter(None, map(place_of, slocs)), None)
            if place:
                return place.line
    return ""


# ---------------------------------------------------------------------- larger examples
# Bounds the search where a dim has no maximum; the search doubles the size in each step.
_LARGEST = 2**20
# Bounds the sizes tried on either side of a limit: each substitutes into a sympy expression.
_SAMPLES = 64


def _larger_examples(message: str, env: ShapeEnv) -> list[str]:
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
