"""Activations, also with a gate or a bias, the softmax, and its logarithm.

Inputs are floating, of any shape. Results have the shape and dtype of the first input, and are
computed in float32 (float64 in float64) and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from coreai_onnx.composites.checks import (
    Attributes,
    Dims,
    axes_outside,
    compute_dtype,
    not_one_of,
    rank_below,
)
from coreai_onnx.composites.declaration import Attribute, Composite, Input

_INPUT = Input("input", aliases=("x", "hidden_states", "inputs"))
_APPROXIMATE = Attribute("approximate", "string", "none", structural=True)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return ``gate * sigmoid(gate) * up`` (Shazeer 2020, "GLU Variants", equation 6)."""
    wide = compute_dtype(gate)
    x = gate.to(wide)
    return (x * torch.sigmoid(x) * up.to(wide)).to(gate.dtype)


SWIGLU = Composite(
    name="swiglu",
    inputs=(Input("gate"), Input("up")),
    outputs=("output",),
    reference=swiglu,
    kernel=True,
    formula="gate * sigmoid(gate) * up",
)


def geglu(gate: torch.Tensor, up: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """Return ``gelu(gate) * up`` (Shazeer 2020, "GLU Variants", equation 6).

    Args:
        gate: Floating, of any shape.
        up: As ``gate``.
        approximate: ``"none"``: ``gelu(x) = x / 2 (1 + erf(x / √2))``; ``"tanh"``:
            ``x / 2 (1 + tanh(√(2/π) (x + 0.044715 x³)))``
            (Hendrycks & Gimpel 2016, section 2).
    """
    wide = compute_dtype(gate)
    x = gate.to(wide)
    if approximate == "tanh":
        # The approximation of Hendrycks & Gimpel 2016, section 2, as torch computes it.
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        activated = 0.5 * x * (1 + torch.tanh(inner))
    else:
        activated = 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))
    return (activated * up.to(wide)).to(gate.dtype)


def _check_approximation(dims: Dims, attributes: Attributes) -> str:
    del dims
    return not_one_of(attributes, "approximate", ("none", "tanh"))


GEGLU = Composite(
    name="geglu",
    inputs=(Input("gate"), Input("up")),
    outputs=("output",),
    attributes=(_APPROXIMATE,),
    reference=geglu,
    kernel=True,
    formula="gelu(gate) * up",
    variant_axes=(("tanh",),),
    check=_check_approximation,
)


_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": torch.Tensor.clone,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": torch.exp,
}


def add_bias(input: torch.Tensor, bias: torch.Tensor, *, activation: str = "none") -> torch.Tensor:
    """Return ``activation(input + bias)``, as after a linear layer.

    Args:
        input: ``[..., C]``, floating.
        bias: ``[C]``, in the dtype of ``input``.
        activation: ``"none"``, ``"silu"`` (``x * sigmoid(x)``), ``"gelu"``
            (``x / 2 (1 + erf(x / √2))``), ``"gelu_tanh"``
            (``x / 2 (1 + tanh(√(2/π) (x + 0.044715 x³)))``; Hendrycks & Gimpel 2016, section 2),
            ``"sigmoid"``, ``"tanh"`` or ``"exp"``.
    """
    wide = compute_dtype(input)
    return _ACTIVATIONS[activation](input.to(wide) + bias.to(wide)).to(input.dtype)


def _check_add_bias(dims: Dims, attributes: Attributes) -> str:
    del dims
    return not_one_of(attributes, "activation", _ACTIVATIONS)


ADD_BIAS = Composite(
    name="add_bias",
    inputs=(Input("input", dims="* C", aliases=("x", "hidden_states")), Input("bias", dims="C")),
    outputs=("output",),
    attributes=(Attribute("activation", "string", "none", structural=True),),
    reference=add_bias,
    kernel=True,
    formula="activation(input + bias)",
    variant_axes=(("silu", "gelu", "gelu_tanh", "sigmoid", "tanh", "exp"),),
    check=_check_add_bias,
)


def _of_elements(
    reference: Callable[[torch.Tensor], torch.Tensor], formula: str, op: str
) -> Composite:
    """Return the declaration of a function of one tensor that is a torch op."""
    return Composite(
        name=reference.__name__,
        inputs=(_INPUT,),
        outputs=("output",),
        reference=reference,
        formula=formula,
        aten=(op,),
    )


def gelu(input: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """Return ``input * Φ(input)``, with the normal CDF Φ (Hendrycks & Gimpel 2016, eq. 2).

    Args:
        input: Floating, of any shape.
        approximate: ``"none"``: ``x / 2 (1 + erf(x / √2))``; ``"tanh"``:
            ``x / 2 (1 + tanh(√(2/π) (x + 0.044715 x³)))``.
    """
    return F.gelu(input, approximate=approximate)


GELU = Composite(
    name="gelu",
    inputs=(_INPUT,),
    outputs=("output",),
    attributes=(_APPROXIMATE,),
    reference=gelu,
    formula="input * (1 + erf(input / sqrt(2))) / 2",
    variant_axes=(("tanh",),),
    check=_check_approximation,
    aten=("aten.gelu.default",),
)


def silu(input: torch.Tensor) -> torch.Tensor:
    """Return ``input * sigmoid(input)`` (Elfwing et al. 2017, eq. 8)."""
    return F.silu(input)


SILU = _of_elements(silu, "input * sigmoid(input)", "aten.silu.default")


def hard_sigmoid(input: torch.Tensor) -> torch.Tensor:
    """Return ``clamp(input + 3, 0, 6) / 6`` (Howard et al. 2019, section 5.2)."""
    return F.hardsigmoid(input)


HARD_SIGMOID = _of_elements(hard_sigmoid, "clamp(input + 3, 0, 6) / 6", "aten.hardsigmoid.default")


def hard_swish(input: torch.Tensor) -> torch.Tensor:
    """Return ``input * clamp(input + 3, 0, 6) / 6`` (Howard et al. 2019, section 5.2)."""
    return F.hardswish(input)


HARD_SWISH = _of_elements(
    hard_swish, "input * clamp(input + 3, 0, 6) / 6", "aten.hardswish.default"
)


def softmax(input: torch.Tensor) -> torch.Tensor:
    """Return ``exp(input) / sum(exp(input))`` over the last axis, without overflow.

    Args:
        input: Floating, with at least one axis. A row with NaN, or of -inf only, gives NaN.
    """
    return torch.softmax(input.to(compute_dtype(input)), -1).to(input.dtype)


def _check_softmax(dims: Dims, attributes: Attributes) -> str:
    del attributes
    return rank_below(dims, "input", 1)


SOFTMAX = Composite(
    name="softmax",
    inputs=(_INPUT,),
    outputs=("output",),
    reference=softmax,
    kernel=True,
    formula="exp(input) / sum(exp(input), -1)",
    check=_check_softmax,
)


def log_softmax(input: torch.Tensor, *, axis: int = -1) -> torch.Tensor:
    """Return ``input - log(sum(exp(input), axis))``, without overflow.

    Args:
        input: Floating, with at least one axis.
        axis: The axis that is normalized.
    """
    return torch.log_softmax(input, axis)


def _check_log_softmax(dims: Dims, attributes: Attributes) -> str:
    return axes_outside(dims, [attributes["axis"]])


LOG_SOFTMAX = Composite(
    name="log_softmax",
    # The axis is not structural: LogSoftmax reads it from the call, and one body serves all axes.
    inputs=(Input("input", aliases=("x", "logits", "inputs")),),
    outputs=("output",),
    attributes=(Attribute("axis", "int", -1, aliases=("dim",)),),
    reference=log_softmax,
    formula="input - log(sum(exp(input), axis))",
    check=_check_log_softmax,
)
