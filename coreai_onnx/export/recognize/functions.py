"""Functions that forwards of transformers look up: rotary embeddings, and eager attention."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch

from coreai_onnx.composites.torch_ops import call
from coreai_onnx.export.compat.patches import arguments_by_name
from coreai_onnx.export.recognize.blocks import Block
from coreai_onnx.export.recognize.numeric_probe import SEED, probe

_TENSORS = ("q", "k", "x")
Tensor = torch.Tensor
_Halves = Callable[[Tensor], Tensor]


def function_block(place: str, name: str, function: Any) -> Block | None:
    """Return the block for a global of a forward; None if it is not one of these functions."""
    if not isinstance(function, FunctionType):
        return None
    if _is_rotary(name, function):
        return rotary_block(place, function)
    return attention_block(place, function) if _is_eager_attention(name, function) else None


# ---------------------------------------------------------------------- rotary embeddings
def _is_rotary(name: str, function: Any) -> bool:
    """Whether a function has the name and parameters of one that applies a rotary embedding."""
    if not name.startswith("apply_rotary"):
        return False
    try:
        names = list(inspect.signature(function).parameters)
    # Functions written in C may have no signature.
    except (TypeError, ValueError):
        return False
    return "cos" in names and "sin" in names and any(n in names for n in _TENSORS)


def rotary_block(place: str, function: Callable[..., Any]) -> Block:
    """Return the block for a rotary function, with the convention that agrees on random inputs.

    Cosines have full width with two equal halves, full width with every one repeated, or half
    width. Pairs of lanes are halves or neighbors. The block is refused if no convention agrees.
    """
    name = getattr(function, "__name__", place)
    reason = ""
    for widen, halve, interleaved in _conventions():
        replacement = _replacement(function, halve, interleaved)
        fault = probe(function, replacement, [_random_arguments(function, widen)])
        if not fault:
            return Block(place, name, "rope", replacement)
        reason = reason or fault
    return Block(place, name, "rope", replacement, reason=reason)


def _conventions() -> Iterator[tuple[_Halves, _Halves, int]]:
    """Yield how to widen half-width angles, how to undo it, and whether pairs are neighbors."""
    halves = (lambda a: torch.cat([a, a], dim=-1)), (lambda c: c[..., : c.shape[-1] // 2])
    twice = (lambda a: a.repeat_interleave(2, dim=-1)), (lambda c: c[..., ::2])
    as_is = (lambda a: a), (lambda c: c)
    for widen, halve in (halves, as_is, twice):
        for interleaved in (0, 1):
            yield widen, halve, interleaved


def _replacement(
    function: Callable[..., Any], halve: _Halves, interleaved: int
) -> Callable[..., Any]:
    signature = inspect.signature(function)

    def replacement(*args: Any, **kwargs: Any) -> Any:
        arguments = arguments_by_name(signature, args, kwargs)
        unknown = arguments.keys() - {*_TENSORS, "cos", "sin", "position_ids", "unsqueeze_dim"}
        if unknown or arguments.get("position_ids") is not None:
            raise ValueError(f"arguments {sorted(unknown) or ['position_ids']} mean something else")
        axis = arguments.get("unsqueeze_dim", 1)
        cos, sin = halve(arguments["cos"]), halve(arguments["sin"])
        tensors = [arguments[name] for name in _TENSORS if name in arguments]
        results = tuple(_rotate(x, cos, sin, axis, interleaved) for x in tensors)
        return results if len(results) > 1 else results[0]

    return replacement


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, axis: int, interleaved: int) -> Tensor:
    """Rotate ``[batch, heads, length, lanes]`` (axis 1) or ``[batch, length, heads, lanes]``."""
    if axis not in (1, 2) or x.ndim != 4:
        raise ValueError(f"heads on axis {axis} of a tensor of rank {x.ndim}")
    heads_first = x if axis == 1 else x.transpose(1, 2)
    rotated = 2 * cos.shape[-1]
    turned = call(
        "rope",
        heads_first,
        cos.unsqueeze(1),
        sin.unsqueeze(1),
        dims=rotated if rotated < x.shape[-1] else 0,  # 0 means all lanes
        interleaved=interleaved,
    )
    return turned if axis == 1 else turned.transpose(1, 2)


def _random_arguments(function: Callable[..., Any], widen: _Halves) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    angles = widen(torch.randn(2, 5, 4, generator=generator))
    names = inspect.signature(function).parameters
    tensors = {
        # Queries and keys have different numbers of heads, as in grouped attention.
        name: torch.randn(2, 3 + i, 5, 8, generator=generator)
        for i, name in enumerate(n for n in _TENSORS if n in names)
    }
    return {**tensors, "cos": angles.cos(), "sin": angles.sin()}


# ---------------------------------------------------------------------- eager attention
NAME = "eager_attention_forward"
_PARAMETERS = ["module", "query", "key", "value", "attention_mask"]


def _is_eager_attention(name: str, function: Any) -> bool:
    """Whether a function has the name and parameters of the eager attention of transformers."""
    # The parameters after these differ from model to model.
    return name == NAME and list(inspect.signature(function).parameters)[:5] == _PARAMETERS


def attention_block(place: str, function: Callable[..., Any]) -> Block:
    """Return the block for an attention function, with the composite as its replacement.

    Only the first result is compared: the composite does not return the attention weights. A model
    that returns them keeps its own attention.
    """
    replacement = _attention_replacement(function)
    name = "scaled_dot_product_attention"
    return Block(place, NAME, name, replacement, compared=lambda result: result[0])


def _attention_replacement(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    def replacement(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
        bound = signature.bind(*args, **kwargs)
        arguments = {k: v for k, v in bound.arguments.items() if k != "kwargs"}
        arguments |= bound.arguments.get("kwargs", {})
        module, query = arguments["module"], arguments["query"]
        if arguments.get("position_bias") is not None or _wants_weights(module, arguments):
            raise ValueError("it is asked for its weights, or adds a bias")
        if arguments.get("dropout") and module.training:
            raise ValueError("it drops out weights")
        scale = arguments.get("scaling")
        if scale is None:
            scale = getattr(module, "head_dim", query.shape[-1]) ** -0.5
        sinks = arguments.get("s_aux", getattr(module, "sinks", None))
        output = call(
            "scaled_dot_product_attention",
            query,
            arguments["key"],
            arguments["value"],
            arguments["attention_mask"],
            sinks,
            scale=float(scale),
            softcap=float(arguments.get("softcap") or 0.0),
        )
        # The layout of the functions of transformers, on which a view in the caller relies.
        return output.transpose(1, 2).contiguous(), None

    return replacement


def _wants_weights(module: Any, given: dict[str, Any]) -> bool:
    config = getattr(module, "config", None)
    return bool(given.get("output_attentions") or getattr(config, "output_attentions", False))
