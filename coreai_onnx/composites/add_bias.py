"""A bias, and the activation after it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn.functional import gelu, silu

from coreai_onnx.composites.checks import Attributes, Dims
from coreai_onnx.composites.declaration import Attribute, Composite, Input

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": torch.Tensor.clone,
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
}


def add_bias(input: torch.Tensor, bias: torch.Tensor, *, activation: str = "none") -> torch.Tensor:
    """Return ``activation(input + bias)``, as after a linear layer.

    Args:
        input: ``[..., C]``, floating.
        bias: ``[C]``, in the dtype of ``input``.
        activation: ``"none"``, ``"silu"`` (``x * sigmoid(x)``), ``"gelu"``
            (``x / 2 (1 + erf(x / √2))``) or ``"gelu_tanh"``
            (``x / 2 (1 + tanh(√(2/π) (x + 0.044715 x³)))``; Hendrycks & Gimpel 2016, section 2).

    Returns:
        The shape and dtype of ``input``; computed in float32 (float64 in float64), rounded once.
    """
    wide = torch.float64 if input.dtype == torch.float64 else torch.float32
    return _ACTIVATIONS[activation](input.to(wide) + bias.to(wide)).to(input.dtype)


def _check(dims: Dims, attributes: Attributes) -> str:
    del dims
    activation = attributes["activation"]
    return "" if activation in _ACTIVATIONS else f"activation is {activation!r}"


COMPOSITE = Composite(
    name="add_bias",
    inputs=(Input("input", dims="* C", aliases=("x", "hidden_states")), Input("bias", dims="C")),
    outputs=("output",),
    attributes=(Attribute("activation", "string", "none", structural=True),),
    reference=add_bias,
    kernel=True,
    formula="activation(input + bias)",
    variant_axes=(("silu", "gelu", "gelu_tanh"),),
    check=_check,
)
