"""Rotary position embedding."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

import torch

from coreai_onnx.composites.checks import Attributes, Dims, compute_dtype
from coreai_onnx.composites.declaration import Attribute, Composite, Input


def rope(
    input: torch.Tensor,
    cos: torch.Tensor | None = None,
    sin: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    freqs: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    *,
    scale: float | torch.Tensor = 1.0,
    base: float | torch.Tensor = 10000.0,
    dims: int = 0,
    interleaved: int = 0,
) -> torch.Tensor:
    """Rotate pairs of lanes by position-dependent angles (Su et al. 2021, eq. 34).

    Args:
        input: ``[batch, heads, length, head_dim]`` or ``[heads, length, head_dim]``, floating.
        cos: Broadcastable to ``[batch, heads, length, dims / 2]``; used only together with
            ``sin``, instead of angles computed from positions.
        sin: Like ``cos``.
        position_ids: ``[batch, length]`` integer positions; ``offset + arange(length)`` if absent.
        freqs: ``[dims / 2]`` float32 angular frequencies; ``base ** (-2 i / dims)`` if absent.
        offset: Position of the first token: ``[]``, ``[1]``, ``[batch]`` or ``[batch, 1]``.
        scale: Factor on the frequencies.
        base: Base of the default frequencies.
        dims: Number of leading lanes that are rotated, even; 0 means all. The rest pass through.
        interleaved: Nonzero: pairs are neighbors ``(2i, 2i+1)``; zero: halves ``(i, i+dims/2)``.

    Returns:
        The shape and dtype of ``input``; angles and the rotation are computed in float32 (float64
        for float64) and rounded once.
    """
    wide = compute_dtype(input)
    rotated = dims if 0 < dims < input.shape[-1] else input.shape[-1]
    if cos is None or sin is None:
        angle = _angles(input, position_ids, freqs, offset, scale, base, rotated // 2, wide)
        cos, sin = torch.cos(angle), torch.sin(angle)
    cos, sin = cos.to(wide), sin.to(wide)
    lanes, rest = input[..., :rotated].to(wide), input[..., rotated:]
    if interleaved:
        pairs = lanes.unflatten(-1, (rotated // 2, 2))
        first, second = pairs[..., 0], pairs[..., 1]
    else:
        first, second = lanes[..., : rotated // 2], lanes[..., rotated // 2 :]
    turned = (cos * first - sin * second, sin * first + cos * second)
    result = torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)
    # Before the other lanes follow, which keep their bits.
    result = result.to(input.dtype)
    return result if rotated == input.shape[-1] else torch.cat([result, rest], dim=-1)


def _angles(
    input: torch.Tensor,
    position_ids: torch.Tensor | None,
    freqs: torch.Tensor | None,
    offset: torch.Tensor | None,
    scale: float | torch.Tensor,
    base: float | torch.Tensor,
    half: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return the angles, in ``dtype``, broadcastable to ``[batch, heads, length, half]``."""
    length, device = input.shape[-2], input.device
    if position_ids is None:
        position = torch.arange(length, device=device, dtype=dtype)
        if offset is not None:
            start = offset.to(dtype)
            position = start + position if start.ndim == 0 else start.reshape(-1, 1) + position
    else:
        position = position_ids.to(dtype)
    if position.ndim == 2 and input.ndim == 4:
        # Positions of the batch apply to every head.
        position = position.unsqueeze(1)
    if freqs is None:
        # i / half = 2 i / dims
        exponent = torch.arange(half, device=device, dtype=dtype) / half
        freqs = 1.0 / torch.pow(torch.as_tensor(base, dtype=dtype), exponent)
    return position.unsqueeze(-1) * (freqs.to(dtype) * scale)


def _check(dims: Dims, attributes: Attributes) -> str:
    shape = dims["input"]
    if len(shape) not in (3, 4):
        return f"input must have rank 3 or 4, got {len(shape)}"
    count, lanes = attributes["dims"], shape[-1]
    if count < 0:
        return f"dims must be at least 0, got {count}"
    rotated = lanes if count == 0 else (count if lanes is None else min(count, lanes))
    if rotated is not None and (rotated < 2 or rotated % 2):
        return f"the number of rotated lanes must be even and positive, is {rotated}"
    for name in ("cos", "sin", "freqs"):
        half = dims[name][-1] if dims.get(name) else None
        if rotated is not None and half is not None and 2 * half != rotated:
            return f"{name} has {half} numbers per position for {rotated} rotated lanes"
    return ""


def _canonical(dims: Dims, attributes: Attributes) -> dict[str, Any]:
    """Return the attributes: ``dims`` is 0 if all lanes are rotated, ``interleaved`` is 0 or 1."""
    lanes = dims["input"][-1]
    all_lanes = lanes is not None and attributes["dims"] >= lanes
    written = {**attributes, "interleaved": int(attributes["interleaved"] != 0)}
    return {**written, "dims": 0} if all_lanes else written


def _unused(names: AbstractSet[str]) -> AbstractSet[str]:
    """Return the inputs without effect: ``cos`` and ``sin`` take precedence over positions."""
    if {"cos", "sin"} <= names:
        return names & {"position_ids", "freqs", "offset"}
    return names & ({"cos", "sin"} | ({"offset"} if "position_ids" in names else set()))


ROPE = Composite(
    name="rope",
    inputs=(
        Input("input", dims="B H T D", aliases=("x", "hidden_states")),
        Input("cos", optional=True, dtype="any", dims="~B H T F"),
        Input("sin", optional=True, dtype="any", dims="~B H T F"),
        Input("position_ids", optional=True, dtype="index", dims="~B T", aliases=("positions",)),
        Input("freqs", optional=True, dtype="float32", dims="F", aliases=("inv_freq",)),
        Input("offset", optional=True, dtype="index", dims="~B 1"),
    ),
    outputs=("output",),
    attributes=(
        Attribute("scale", "float", 1.0),
        Attribute("base", "float", 10000.0, aliases=("theta", "rope_theta")),
        Attribute("dims", "int", 0, aliases=("rotary_dim",), structural=True, switch=True),
        Attribute("interleaved", "int", 0, structural=True),
    ),
    reference=rope,
    kernel=True,
    formula="rotate lane pairs of input by position * freqs * scale",
    variant_axes=(
        ("positions", "offset", "sequence", "per_head"),
        ("freqs",),
        ("interleaved",),
        ("partial",),
        ("rank3",),
    ),
    check=_check,
    canonical=_canonical,
    unused=_unused,
)
