"""Branches of a model on whether its values are finite, which torch.export cannot follow.

Models of transformers limit float16 activations only after an overflow:

    if hidden_states.dtype == torch.float16 and not torch.isfinite(hidden_states).all():
        clamp_value = torch.finfo(hidden_states.dtype).max - 1000
        hidden_states = torch.clamp(hidden_states, min=-clamp_value, max=clamp_value)

:class:`Repairs` exports such a branch as ``torch.where(overflow, torch.clamp(x, …), x)``, which
computes the same. :class:`AssumesFinite` exports the code for finite values.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import textwrap
import tokenize
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from coreai_onnx.export.versions import is_users

_WHEN_FINITE = {
    torch.isfinite: True,
    Tensor.isfinite: True,
    torch.isinf: False,
    Tensor.isinf: False,
    torch.isnan: False,
    Tensor.isnan: False,
}
"""What a check returns for finite values."""
_REDUCED = (torch.all, Tensor.all, torch.any, Tensor.any)
_INVERTED = (torch.logical_not, Tensor.logical_not, torch.bitwise_not, Tensor.__invert__)
_JOINED = (Tensor.__or__, Tensor.__and__, torch.logical_or, torch.logical_and)
_READ = (Tensor.__bool__, Tensor.item)
_REPAIR_NAMES = ("clamp", "clip", "nan_to_num")
_REPAIRS = tuple(getattr(owner, name) for owner in (torch, Tensor) for name in _REPAIR_NAMES)


class NotARepairError(RuntimeError):
    """A branch does more than replace the values that it checks."""


@dataclass(frozen=True)
class _Check:
    """Whether the values of a tensor are finite.

    Attributes:
        result: The Boolean tensor that says so. Keeping it alive keeps its ``id`` unique.
        values: The tensor that is checked.
        when_finite: What ``result`` is if all values are finite.
    """

    result: Tensor
    values: Tensor
    when_finite: bool


class _FiniteChecks(TorchFunctionMode, ABC):
    """While active, ``bool()`` of a check for finite values is answered."""

    def __init__(self) -> None:
        super().__init__()
        self._checks: dict[int, _Check] = {}

    @abstractmethod
    def answered(self, check: _Check) -> bool:
        """Return what ``bool()`` of a check returns."""

    def replaced(self, func: Any, args: tuple[Any, ...], result: Any) -> Any:
        """Return what a call returns instead of its result."""
        del func, args
        return result

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        check = self._checks.get(id(args[0])) if args else None
        if check is not None and func in _READ:
            return self.answered(check)
        result = func(*args, **(kwargs or {}))
        if args and func in _WHEN_FINITE:
            self._checks[id(result)] = _Check(result, args[0], _WHEN_FINITE[func])
        elif check is not None and (func in _REDUCED or self._joins_a_like_check(func, args)):
            self._checks[id(result)] = _Check(result, check.values, check.when_finite)
        elif check is not None and func in _INVERTED:
            self._checks[id(result)] = _Check(result, check.values, not check.when_finite)
        return self.replaced(func, args, result)

    def _joins_a_like_check(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether a call is ``and`` or ``or`` of two checks that agree on finite values."""
        if func not in _JOINED:
            return False
        first, second = (self._checks.get(id(arg)) for arg in args[:2])
        return first is not None and second is not None and first.when_finite == second.when_finite


class AssumesFinite(_FiniteChecks):
    """While active, branches on checks for finite values are taken as for finite values."""

    change: ClassVar[str] = (
        "branches on isfinite, isinf and isnan taken as for finite values: the result differs from "
        "torch if a value that forward checks is infinite or NaN"
    )

    def answered(self, check: _Check) -> bool:
        """Return what the check is for finite values."""
        return check.when_finite


class Repairs(_FiniteChecks):
    """While active, a branch that limits values if some are not finite becomes a ``where``.

    Raises:
        NotARepairError: If a branch on a check for finite values does anything else.
    """

    change: ClassVar[str] = ""  # the results are the same

    def __init__(self) -> None:
        super().__init__()
        self._pending: _Check | None = None

    def answered(self, check: _Check) -> bool:
        """Return what the check is for other values, so that the branch is traced."""
        branch = _branch_at(_frame_of_the_model())
        # A repair must follow its branch at once: a second branch means that it did not.
        if self._pending or branch is None or not _is_repair(branch, when=not check.when_finite):
            raise NotARepairError
        self._pending = check
        return not check.when_finite

    def replaced(self, func: Any, args: tuple[Any, ...], result: Any) -> Any:
        """Return a ``where`` for the repair that belongs to the branch that was entered."""
        pending = self._pending
        # The bounds of a clamp may read these between the branch and the repair.
        is_property = getattr(func, "__name__", "") == "__get__"  # x.dtype, x.device
        if pending is None or is_property:
            return result
        if func not in _REPAIRS or not args or args[0] is not pending.values:
            raise NotARepairError
        self._pending = None
        if pending.when_finite:
            return torch.where(pending.result, pending.values, result)
        return torch.where(pending.result, result, pending.values)


def _frame_of_the_model() -> FrameType:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - only the frame shows the branch
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        raise NotARepairError
    return frame


def _branch_at(frame: FrameType) -> ast.If | None:
    """Return the ``if`` statement whose condition a frame evaluates."""
    for node in ast.walk(_tree(frame.f_code)):
        if isinstance(node, ast.If) and node.test.lineno <= frame.f_lineno <= _last_line(node.test):
            return node
    return None


def _last_line(node: ast.expr) -> int:
    return node.end_lineno or node.lineno


@functools.lru_cache(maxsize=64)
def _tree(code: CodeType) -> ast.Module:
    """Return the syntax tree of a function; an empty one if its source is not known."""
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError, tokenize.TokenError):
        return ast.Module([], [])
    # Frames count the lines of the file, the tree those of the function.
    ast.increment_lineno(tree, first - 1)
    return tree


def _is_repair(branch: ast.If, *, when: bool) -> bool:
    """Whether a branch on a check only repairs the values that are checked.

    The condition is the check, or its negation, or ``other and check``. The last statement is
    ``x = torch.clamp(x, …)`` or the like; the others assign names that it uses.

    Args:
        branch: The statement.
        when: What the check is if the branch is to be executed.
    """
    *before, last = [_assigned(statement) for statement in branch.body]
    if branch.orelse or last is None or _condition(branch.test) != when:
        return False
    name, value = last
    if not isinstance(value, ast.Call) or _attribute(value.func) not in _REPAIR_NAMES:
        return False
    used = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    # A name that the repair does not use may be read later, with a value of the branch.
    return name in used and all(one is not None and one[0] in used for one in before)


def _condition(test: ast.expr) -> bool | None:
    """Return the value of the check for which a condition is true; None if that is not known."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        *others, last = test.values
        plain = all(isinstance(other, ast.Compare | ast.Attribute) for other in others)
        return _condition(last) if plain else None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _condition(test.operand)
        return None if inner is None else not inner
    is_check = isinstance(test, ast.Name) or (isinstance(test, ast.Call) and _attribute(test.func))
    return True if is_check else None


def _attribute(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else ""


def _assigned(statement: ast.stmt) -> tuple[str, ast.expr] | None:
    """Return the name and the value of ``name = value``; None for any other statement."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        return (target.id, statement.value) if isinstance(target, ast.Name) else None
    return None
