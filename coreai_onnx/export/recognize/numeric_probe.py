"""Numeric comparison of a module or a function with its candidate replacement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from coreai_onnx.export.compat.torch_names import pytree

# Fixed, so that every conversion of a model recognizes the same blocks.
SEED = 20260101
MAGNITUDES = (1.0, 1e-3, 8.0)
"""Magnitudes: ordinary inputs; small ones that reveal eps; large ones that reveal a cap."""
RAISES = (RuntimeError, TypeError, ValueError, IndexError, AssertionError, AttributeError, KeyError)
"""Exceptions that a replacement may raise on arguments that it does not support."""


def probe(
    original: Callable[..., Any],
    replacement: Callable[..., Any],
    cases: Iterable[Mapping[str, Any]],
) -> str:
    """Call both on random arguments.

    Args:
        original: A module's forward, or a function.
        replacement: Takes the same arguments, and should return the same result.
        cases: The keyword arguments of each call.

    Returns:
        A description of the first difference; empty if there is none.
    """
    for arguments in cases:
        try:
            with torch.no_grad():
                expected, result = original(**arguments), replacement(**arguments)
        except RAISES as error:
            return f"it fails on random inputs ({first_line(error)})"
        fault, _ = difference(result, expected)
        if fault:
            return f"{fault} on random inputs"
    return ""


def relative_tolerance(dtype: torch.dtype) -> float:
    """Return the largest relative distance of two results that count as equal."""
    # One rounding to bfloat16 changes a number by up to 2**-8, which is 0.4 %.
    return 1e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-4


def difference(result: Any, expected: Any) -> tuple[str, float]:
    """Compare results of a replacement and its original.

    Returns:
        A description of the difference (empty if there is none), and the largest relative
        distance.
    """
    ours, ours_tree = pytree.tree_flatten(result)
    theirs, theirs_tree = pytree.tree_flatten(expected)
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
        worst = max(worst, distance) if not math.isnan(distance) else float("inf")
        # Not `>`, which would accept NaN.
        if not distance <= relative_tolerance(b.dtype):
            return f"the result differs by {distance:.2g}", worst
    return "", worst


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).partition("\n")[0] or type(error).__name__
