"""Checks of calls of composites, which return a message, and canonical forms of attributes.

Sizes are known or None. Unknown sizes are not checked here, but by the kernel or onnxruntime.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

Dims = Mapping[str, Sequence[int | None]]
"""The dims of the inputs that are present, by name."""
Attributes = Mapping[str, Any]
Tensors = Mapping[str, torch.Tensor]
"""The inputs that are present, by name."""


def compute_dtype(x: torch.Tensor | torch.dtype) -> torch.dtype:
    """Return the dtype of intermediate results: float64 for float64, float32 otherwise."""
    dtype = x.dtype if isinstance(x, torch.Tensor) else x
    return torch.float64 if dtype == torch.float64 else torch.float32


def require(condition: bool | torch.SymBool, name: str, message: str) -> None:  # noqa: FBT001 - one condition
    """Raise a ValueError about a module or op unless a condition holds."""
    if not condition:
        raise ValueError(f"{name}: {message}")


def refuse(wrong: str, name: str) -> None:
    """Raise a ValueError with a message about a module or op, unless it is empty."""
    require(not wrong, name, wrong)


def not_multiple(what: str, size: int | None, of: str, divisor: int | None) -> str:
    """Return a message if a size is not a multiple of another; empty also if one is unknown."""
    if size is None or divisor is None or (divisor > 0 and size % divisor == 0):
        return ""
    return f"{what} must be a multiple of {of} ({divisor}), got {size}"


def wrong_rank(dims: Dims, **ranks: int) -> str:
    """Return a message if an input that is present has another rank."""
    for name, rank in ranks.items():
        if name in dims and len(dims[name]) != rank:
            return f"{name} must have rank {rank}, got {len(dims[name])}"
    return ""


def not_one_of(attributes: Attributes, name: str, values: Collection[str]) -> str:
    """Return a message if an attribute has another value."""
    value = attributes[name]
    return "" if value in values else f"{name} must be one of {', '.join(values)}, got {value!r}"


def rank_below(dims: Dims, name: str, least: int) -> str:
    """Return a message if an input has too few axes."""
    rank = len(dims[name]) if name in dims else least
    return "" if rank >= least else f"{name} must have rank {least} or higher, got {rank}"


def axes_outside(dims: Dims, axes: Sequence[int], name: str = "input") -> str:
    """Return a message if an axis is out of range or given twice."""
    if name not in dims:
        return ""
    rank = len(dims[name])
    wrong = [a for a in axes if not -rank <= a < rank]
    if wrong:
        return f"axis {wrong[0]} is out of range for {name} of rank {rank}"
    # The same axis may be counted from either end.
    twice = len({a % rank for a in axes}) < len(axes) if rank else False
    return f"axes {list(axes)} name one axis twice" if twice else ""


def check_axes(dims: Dims, attributes: Attributes) -> str:
    """Check that there are axes, and that they are in range."""
    if not attributes["axes"]:
        return "axes is empty"
    return axes_outside(dims, attributes["axes"])


def check_trailing_axes(dims: Dims, attributes: Attributes) -> str:
    """Check that the axes are the trailing ones, as a norm requires."""
    wrong = check_axes(dims, attributes)
    if wrong:
        return wrong
    axes = negative_axes(dims, attributes)["axes"]
    last = list(range(-len(axes), 0))
    return "" if axes == last else f"axes is {list(attributes['axes'])}, not the last ones, {last}"


def negative_axes(dims: Dims, attributes: Attributes) -> dict[str, Any]:
    """Return the axes as sorted negative numbers, so that one body serves every rank."""
    rank = len(dims["input"])
    axes = sorted(a if a < 0 else a - rank for a in attributes["axes"])
    return {**attributes, "axes": axes}


def check_channels(least_rank: int) -> Any:
    """Return a check of an input ``[N, C, ...]`` and of parameters of size C."""

    def check(dims: Dims, attributes: Attributes) -> str:
        del attributes
        return rank_below(dims, "input", least_rank) or other_channels(dims)

    return check


def other_channels(dims: Dims) -> str:
    """Return a message if a parameter does not have one element per channel."""
    channels = dims["input"][1] if len(dims.get("input", ())) > 1 else None
    for name, shape in dims.items():
        if name == "input":
            continue
        if len(shape) != 1:
            return f"{name} must have rank 1, one number per channel, got {len(shape)}"
        if None not in (shape[0], channels) and shape[0] != channels:
            return f"{name} has {shape[0]} numbers for {channels} channels"
    return ""
