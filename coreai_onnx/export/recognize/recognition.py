"""The report of recognized and refused building blocks of a model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from coreai_onnx.export.compat.torch_names import pytree
from coreai_onnx.table import render

_RELATIVE = 1e-4
_LOW_PRECISION = 100
RAISES = (RuntimeError, TypeError, ValueError, IndexError, AssertionError, AttributeError, KeyError)
"""Exceptions that a replacement may raise on arguments that it does not support."""


@dataclass(eq=False)
class Block:
    """A building block of a model, and its candidate replacement.

    Attributes:
        place: Path of the module in the model, or the function's name with its module.
        kind: Name of the class or function.
        composite: The composite that the replacement calls.
        replacement: Takes the arguments of the block, and returns the same result.
        meaning: A key that is equal for blocks whose replacements are the same function.
        compared: Selects the part of a result that is compared; all of it by default.
        calls: Number of calls in the run on the example inputs.
        worst: Largest difference on the example inputs, relative to the largest number.
        reason: Why it was refused; empty if it was not.
    """

    place: str
    kind: str
    composite: str
    replacement: Callable[..., Any]
    meaning: Any = None
    compared: Callable[[Any], Any] = lambda result: result
    calls: int = 0
    worst: float = 0.0
    reason: str = ""

    def check(self, wanted: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Compare the replacement's result with the original's for the same arguments."""
        self.calls += 1
        try:
            with torch.no_grad():
                given = self.replacement(*args, **kwargs)
        except RAISES as error:
            self.refuse(f"the replacement does not take its arguments ({first_line(error)})")
            return
        found, distance = difference(self.compared(given), self.compared(wanted))
        self.worst = max(self.worst, distance)
        if found:
            self.refuse(found)

    def refuse(self, reason: str) -> None:
        """Refuse the block; the first reason is kept."""
        self.reason = self.reason or reason


@dataclass
class Recognition:
    """The report of a conversion with ``externalize_modules="auto"``; prints as a table.

    Attributes:
        blocks: Every candidate block.
    """

    blocks: list[Block] = field(default_factory=list)

    @property
    def recognized(self) -> list[Block]:
        """The blocks that became composites, confirmed on the example inputs."""
        return [b for b in self.blocks if not b.reason and b.calls]

    @property
    def recognised(self) -> list[Block]:
        """Deprecated name of `recognized`."""
        warnings.warn("use Recognition.recognized", DeprecationWarning, stacklevel=2)
        return self.recognized

    @property
    def refused(self) -> list[Block]:
        """The blocks that are not replaced, each with its reason."""
        return [b for b in self.blocks if b.reason]

    def __str__(self) -> str:
        """Return a table with one line for the blocks of a class with the same outcome."""
        lines: dict[tuple[str, ...], list[Block]] = {}
        for block in self.blocks:
            result = block.reason or ("recognized" if block.calls else "not called")
            lines.setdefault((block.kind, block.composite, result), []).append(block)
        rows = []
        for (kind, composite, result), same in lines.items():
            calls = sum(b.calls for b in same)
            worst = f"{max(b.worst for b in same):.1e}" if calls else ""
            rows.append((kind, composite, str(len(same)), str(calls), worst, result))
        header = ("block", "composite", "places", "calls", "difference", "result")
        return render(header, rows)


def difference(given: Any, wanted: Any) -> tuple[str, float]:
    """Compare results of a replacement and its original.

    Returns:
        A description of the difference (empty if there is none), and the largest relative
        distance.
    """
    ours, ours_tree = pytree.tree_flatten(given)
    theirs, theirs_tree = pytree.tree_flatten(wanted)
    if ours_tree != theirs_tree:
        return "the replacement returns another structure", 0.0
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if not isinstance(b, torch.Tensor):
            if a is not b and a != b:
                return f"the replacement returns {a!r}, the original {b!r}", 0.0
            continue
        if a.dtype != b.dtype or a.shape != b.shape:
            return (
                f"the replacement gives {a.dtype} {tuple(a.shape)}, "
                f"the original {b.dtype} {tuple(b.shape)}"
            ), 0.0
        if not b.numel():
            continue
        scale = b.double().abs().max().item()
        distance = (a.double() - b.double()).abs().max().item() / (scale or 1.0)
        low = b.dtype in (torch.float16, torch.bfloat16)
        worst = max(worst, distance) if not math.isnan(distance) else float("inf")
        if not distance <= _RELATIVE * (_LOW_PRECISION if low else 1):
            return f"the result differs by {distance:.2g}", worst
    return "", worst


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).partition("\n")[0] or type(error).__name__
