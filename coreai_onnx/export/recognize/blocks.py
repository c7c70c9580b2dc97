"""The report of recognized and refused building blocks of a model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from coreai_onnx.export.recognize.numeric_probe import RAISES, difference, first_line
from coreai_onnx.messages import render


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

    def check(self, expected: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Compare the replacement's result with the original's for the same arguments."""
        self.calls += 1
        try:
            with torch.no_grad():
                result = self.replacement(*args, **kwargs)
        except RAISES as error:
            self.refuse(f"the replacement does not take its arguments ({first_line(error)})")
            return
        fault, distance = difference(self.compared(result), self.compared(expected))
        self.worst = max(self.worst, distance)
        if fault:
            self.refuse(fault)

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
        # A block that the example does not call is not in the program.
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
