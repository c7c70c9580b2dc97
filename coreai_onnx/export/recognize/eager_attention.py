"""The eager attention of transformers, used for sinks or a soft cap, which torch has no op for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from coreai_onnx.composites.torch_ops import call
from coreai_onnx.export.recognize.blocks import Block

NAME = "eager_attention_forward"
_PARAMETERS = ["module", "query", "key", "value", "attention_mask"]


def is_eager_attention(name: str, function: Any) -> bool:
    """Whether a function has the name and parameters of the eager attention of transformers."""
    if name != NAME or not callable(function):
        return False
    # The parameters after these differ from model to model.
    return list(inspect.signature(function).parameters)[:5] == _PARAMETERS


def attention_block(place: str, function: Callable[..., Any]) -> Block:
    """Return the block for an attention function, with the composite as its replacement.

    Only the first result is compared: the composite does not return the attention weights. A model
    that returns them keeps its own attention.
    """
    replacement = _replacement(function)
    name = "scaled_dot_product_attention"
    return Block(place, NAME, name, replacement, compared=lambda result: result[0])


def _replacement(function: Callable[..., Any]) -> Callable[..., Any]:
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
