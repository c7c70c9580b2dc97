"""Retries of a failed export with other options.

torch.export rejects a model if an operator needs a condition on a size that it cannot prove for
every size in the range. Most such models export if the condition becomes a runtime assertion, if
sizes 0 and 1 are not specialized, or if the range is narrowed as torch suggests. It also rejects
branches on the values of tensors; those on whether the values are finite can be exported.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch.export import Dim
from torch.export.dynamic_shapes import refine_dynamic_shapes_from_suggested_fixes

from coreai_onnx.errors import ExportError, ExportRetryWarning
from coreai_onnx.export.capture.explain import outside, suggested_fixes
from coreai_onnx.export.compat.finite_checks import AssumesFinite, Repairs
from coreai_onnx.export.compat.torch_names import (
    ConstraintViolationError,
    DataDependentOutputException,
    GuardOnDataDependentSymNode,
    TorchDynamoException,
    UserError,
    UserErrorType,
)
from coreai_onnx.export.torch_export import TorchExport, dims_in
from coreai_onnx.model.dependencies import (
    BOOLEAN_CONDITION,
    FAKE_CONSTANT,
    FIXED_BY_EXAMPLE,
    FIXED_SIZE,
    FLOAT_GUARD,
    LOOPS_OF_TORCH,
)

_Result = TypeVar("_Result")
_MOST_FIXES = 3
"""Maximum number of narrowings: after one dim is narrowed, torch may suggest another."""
_OVER_SIZES = (UserErrorType.CONSTRAINT_VIOLATION, UserErrorType.DYNAMIC_DIM)


def with_retries(export: Any, once: Callable[[Any], _Result]) -> _Result:
    """Export a model; if torch cannot follow a condition, retry with other options.

    Args:
        export: Exports a module; only a :class:`TorchExport` is retried.
        once: Makes one attempt with a given export function.

    Raises:
        ExportError: The error of the first attempt, if no attempt succeeds.

    Warns:
        ExportRetryWarning: If a later attempt succeeds; the message lists the changed options.
    """
    try:
        return once(export)
    except ExportError as error:
        if not isinstance(export, TorchExport):
            raise
        first = error
    if _is_of_a_stale_frame(first.__cause__):
        torch.compiler.reset()
        try:
            return once(export)
        except ExportError as error:
            first = error
    for way in _ways(export, first):
        result = _attempt(way, once)
        if result is not None:
            _warn(first, list(_changes(export, result[0])))
            return result[1]
    raise first


def _is_of_a_stale_frame(error: BaseException | None) -> bool:
    """Whether Dynamo traced torch's own code of a cond or loop instead of the model's.

    After an earlier compilation in the process failed, Dynamo may keep its frame and inline the
    trace of the branches, which it then cannot follow.
    """
    return isinstance(error, TorchDynamoException) and LOOPS_OF_TORCH.is_in(error)


def _attempt(
    way: TorchExport, once: Callable[[Any], _Result]
) -> tuple[TorchExport, _Result] | None:
    """Try one export, then again with the ranges that torch suggests; return None if it fails."""
    for _ in range(1 + _MOST_FIXES):
        try:
            return way, once(way)
        except ExportError as error:
            narrowed = _narrowed(way, error) if way.oblivious else None
        if narrowed is None:
            return None
        way = narrowed
    return None


def _ways(export: TorchExport, error: ExportError) -> Iterator[TorchExport]:
    """Yield the exports that may avoid an error."""
    # Only another reading of tensor.data avoids this error, whatever the sizes are.
    if FAKE_CONSTANT.is_in(error):
        yield replace(export, detached=True)
        return
    if not _is_over_sizes(error.__cause__):
        return
    if BOOLEAN_CONDITION.is_in(error.__cause__):
        # The exact way first: AssumesFinite differs from the model where values are not finite.
        yield replace(export, finite=Repairs)
        yield replace(export, finite=AssumesFinite)
    fixed_by_example = FIXED_BY_EXAMPLE.is_in(error.__cause__)
    narrowed = _narrowed(export, error)
    if narrowed is not None and export.deferred and export.oblivious:
        # The options allow as much as they can: the ranges remain, and not the same attempt again.
        yield narrowed
    # One option at a time first, as each changes what the program checks.
    yield replace(export, deferred=not fixed_by_example, oblivious=fixed_by_example)
    if not (export.deferred and export.oblivious):
        yield replace(export, deferred=True, oblivious=True)
        if narrowed is not None:
            yield narrowed
    # The last resort: Dynamo compiles the code of forward, and supports only a part of Python.
    if not export.strict:
        yield replace(export, strict=True, deferred=True, oblivious=True)


def _is_over_sizes(error: BaseException | None) -> bool:
    """Whether dynamic sizes made torch.export fail, unless the model specializes a size.

    Torch also specializes a size that is 0 or 1 in the example, whatever the model does. With
    deferred assertions, torch drops the guard that an integer made of a float is a constant: the
    program would have the number of the example for every size.
    """
    if FLOAT_GUARD.is_in(error):
        return False
    if FIXED_SIZE.is_in(FIXED_BY_EXAMPLE.pattern.sub("", str(error))):
        return False
    if isinstance(error, UserError):
        return error.error_type in _OVER_SIZES
    kinds = (ConstraintViolationError, GuardOnDataDependentSymNode, DataDependentOutputException)
    return isinstance(error, kinds)


def _narrowed(export: TorchExport, error: ExportError) -> TorchExport | None:
    """Return the export with the dims that torch suggests; None if a dim would become static."""
    fixes = suggested_fixes(str(error.__cause__))
    named = all(dim is None or isinstance(dim, int | Dim) for dim in dims_in(export.dynamic_shapes))
    if not fixes or not named or any(fix.rpartition(" = ")[2].isdigit() for fix in fixes):
        return None
    message = "\n".join(["Suggested fixes:", *fixes])
    shapes = refine_dynamic_shapes_from_suggested_fixes(message, export.dynamic_shapes)
    return replace(export, dynamic_shapes=shapes)


def _warn(first: ExportError, changes: list[str]) -> None:
    if not changes:  # tensor.detach() for tensor.data, or torch.where for a branch: the same
        return
    lines = ["torch.export failed as asked, and succeeded with"]
    lines += [f"  {change}" for change in changes]
    lines.append("compare the result with torch at several sizes; the first error was")
    lines += [f"  {line}" for line in str(first).splitlines()[:_SHOWN]]
    warnings.warn("\n".join(lines), ExportRetryWarning, stacklevel=outside())


_SHOWN = 4


def _changes(asked: TorchExport, done: TorchExport) -> Iterator[str]:
    """Yield the options of one export that differ from another."""
    if done.deferred > asked.deferred:
        yield (
            "prefer_deferred_runtime_asserts_over_guards=True: conditions on sizes are checked at "
            "run time as far as the session knows them"
        )
    if done.oblivious > asked.oblivious:
        yield "backed_size_oblivious=True: sizes of 0 and 1 get no branches of their own"
    if done.strict > asked.strict:
        yield "strict=True: the code of forward is compiled, not run"
    if done.finite is not asked.finite and done.finite is not None and done.finite.change:
        yield done.finite.change
    before, after = dims_in(asked.dynamic_shapes), dims_in(done.dynamic_shapes)
    pairs = [pair for pair in zip(before, after, strict=True) if pair[0] is not pair[1]]
    yield from dict.fromkeys(f"{_text(old)} narrowed to {_text(new)}" for old, new in pairs)


def _text(dim: Any) -> str:
    """Return a dim with its range."""
    bounds = {"min": getattr(dim, "min", None), "max": getattr(dim, "max", None)}
    options = ", ".join(f"{key}={int(x)}" for key, x in bounds.items() if str(x).isdigit() and x)
    name = getattr(dim, "__name__", str(dim))
    return f"Dim({name!r}, {options})" if options else f"Dim({name!r})"
