"""Normalizations over the last axes, also of the sum of a residual connection, and vector norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from coreai_onnx.composites.checks import (
    Attributes,
    Dims,
    check_axes,
    check_trailing_axes,
    compute_dtype,
    negative_axes,
)
from coreai_onnx.composites.declaration import Attribute, Composite, Input

_INPUT = Input("input", aliases=("x", "hidden_states", "inputs"))
_SKIP = Input("skip", aliases=("residual",))
_SCALE = Input("scale", optional=True, dtype="any", dims="~*", aliases=("weight", "gamma"))
_BIAS = Input("bias", optional=True, dtype="any", dims="~*", aliases=("beta",))
_AXES = Attribute("axes", "ints", (-1,), structural=True)
_RMS_EPS = Attribute("eps", "float", 1e-5, aliases=("variance_epsilon", "epsilon", "norm_eps"))
_LAYER_EPS = Attribute(
    "eps", "float", 1e-5, aliases=("variance_epsilon", "epsilon", "layer_norm_eps")
)
# As in bodies.norms: up to four trailing axes have a variant each, all others share one.
_SEVERAL_AXES = ("axes2", "axes3", "axes4", "axes")


def rms_norm(
    input: torch.Tensor,
    scale: torch.Tensor | None = None,
    *,
    axes: Sequence[int] = (-1,),
    eps: float | torch.Tensor = 1e-5,
) -> torch.Tensor:
    """Return ``input / sqrt(mean(input²) + eps) * scale`` (Zhang & Sennrich 2019, eq. 4).

    Args:
        input: ``[..., dim]``, floating.
        scale: Broadcastable to ``input``. A float32 scale is applied in float32 before the result
            is rounded; a scale in the dtype of ``input`` is applied after rounding.
        axes: Trailing axes to normalize over.
        eps: Added to the mean square.

    Returns:
        The shape and dtype of ``input``; statistics are computed in float32 (float64 in float64).
    """
    wide = compute_dtype(input)
    x = input.to(wide)
    mean_square = torch.mean(x * x, dim=list(axes), keepdim=True)
    normalized = x / torch.sqrt(mean_square + eps)
    if scale is None:
        return normalized.to(input.dtype)
    if scale.dtype == torch.float32 and input.dtype != torch.float32:
        return (normalized * scale).to(input.dtype)
    # As LlamaRMSNorm of transformers: rounded to the dtype of the input before it is scaled.
    rounded = normalized.to(input.dtype).to(wide)
    return (rounded * scale.to(wide)).to(input.dtype)


RMS_NORM = Composite(
    name="rms_norm",
    inputs=(_INPUT, _SCALE),
    outputs=("output",),
    attributes=(_AXES, _RMS_EPS),
    reference=rms_norm,
    kernel=True,
    formula="input / sqrt(mean(input^2, axes) + eps) * scale",
    variant_axes=(_SEVERAL_AXES, ("unscaled", "wide_scale", "narrow_scale")),
    check=check_trailing_axes,
    canonical=negative_axes,
)


def skip_rms_norm(
    input: torch.Tensor,
    skip: torch.Tensor,
    scale: torch.Tensor | None = None,
    *,
    axes: Sequence[int] = (-1,),
    eps: float | torch.Tensor = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``rms_norm(input + skip, scale)``, and the sum.

    ``skip`` and both results have the shape and dtype of ``input``, to which the sum is rounded
    before it is normalized. The other arguments are those of :func:`rms_norm`.
    """
    total = input + skip
    return rms_norm(total, scale, axes=axes, eps=eps), total


SKIP_RMS_NORM = replace(
    RMS_NORM,
    name="skip_rms_norm",
    inputs=(_INPUT, _SKIP, _SCALE),
    outputs=("output", "sum"),
    output_dims=("*", "*"),
    reference=skip_rms_norm,
    formula="sum = input + skip; output = rms_norm(sum, scale)",
)


def layer_norm(
    input: torch.Tensor,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    axes: Sequence[int] = (-1,),
    eps: float | torch.Tensor = 1e-5,
) -> torch.Tensor:
    """Return ``(input - mean) / sqrt(variance + eps) * scale + bias`` (Ba et al. 2016, eq. 4).

    Args:
        input: ``[..., *normalized_shape]``, floating.
        scale: Broadcastable to ``input``; its own dtype or that of ``input``.
        bias: Like ``scale``.
        axes: Trailing axes to normalize over.
        eps: Added to the variance.

    Returns:
        The shape and dtype of ``input``; computed in float32 (float64 in float64), the variance
        in a second pass over the centered values.
    """
    wide = compute_dtype(input)
    x = input.to(wide)
    centered = x - torch.mean(x, dim=list(axes), keepdim=True)
    # A second pass, because mean(x²) - mean(x)² cancels where the mean is large.
    variance = torch.mean(centered * centered, dim=list(axes), keepdim=True)
    result = centered / torch.sqrt(variance + eps)
    if scale is not None:
        result = result * scale.to(wide)
    if bias is not None:
        result = result + bias.to(wide)
    return result.to(input.dtype)


LAYER_NORM = Composite(
    name="layer_norm",
    inputs=(_INPUT, _SCALE, _BIAS),
    outputs=("output",),
    attributes=(_AXES, _LAYER_EPS),
    reference=layer_norm,
    kernel=True,
    formula="(input - mean(input, axes)) / sqrt(variance(input, axes) + eps) * scale + bias",
    variant_axes=(_SEVERAL_AXES, ("unscaled", "no_bias", "bias_only"), ("wide_scale",)),
    check=check_trailing_axes,
    canonical=negative_axes,
)


def skip_layer_norm(
    input: torch.Tensor,
    skip: torch.Tensor,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    axes: Sequence[int] = (-1,),
    eps: float | torch.Tensor = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``layer_norm(input + skip, scale, bias)``, and the sum.

    Inputs and results are like those of :func:`skip_rms_norm`.
    """
    total = input + skip
    return layer_norm(total, scale, bias, axes=axes, eps=eps), total


SKIP_LAYER_NORM = replace(
    LAYER_NORM,
    name="skip_layer_norm",
    inputs=(_INPUT, _SKIP, _SCALE, _BIAS),
    outputs=("output", "sum"),
    output_dims=("*", "*"),
    reference=skip_layer_norm,
    formula="sum = input + skip; output = layer_norm(sum, scale, bias)",
)


def linalg_vector_norm(
    input: torch.Tensor,
    *,
    ord: float | torch.Tensor = 2.0,
    axes: Sequence[int] = (-1,),
    keep_dim: int = 0,
) -> torch.Tensor:
    """Return ``sum(|input| ** ord, axes) ** (1 / ord)``.

    Args:
        input: Floating, with at least one axis.
        ord: The order; 0 counts the elements that are not zero, infinity returns the largest
            magnitude, minus infinity the smallest.
        axes: The axes to reduce; torch's ``dtype`` is a cast before the norm.
        keep_dim: Nonzero: the reduced axes are kept with size 1.

    Returns:
        The norms in the dtype of ``input``; computed in float32 (float64 in float64), rounded
        once.
    """
    axes = tuple(axes)
    norm: torch.Tensor = torch.linalg.vector_norm(input, float(ord), axes, keepdim=bool(keep_dim))
    return norm


def _axes_from_the_front(dims: Dims, attributes: Attributes) -> dict[str, Any]:
    """Return non-negative axes: onnxruntime supports no others for empty tensors."""
    rank = len(dims["input"])
    return {**attributes, "axes": sorted(axis % rank for axis in attributes["axes"])}


LINALG_VECTOR_NORM = Composite(
    name="linalg_vector_norm",
    inputs=(_INPUT,),
    outputs=("output",),
    output_dims=("?",),
    attributes=(
        Attribute("ord", "float", 2.0, aliases=("p",), structural=True),
        Attribute("axes", "ints", (-1,), aliases=("dim",)),
        Attribute("keep_dim", "int", 0, aliases=("keepdim",)),
    ),
    reference=linalg_vector_norm,
    formula="sum(abs(input) ^ ord, axes) ^ (1 / ord)",
    variant_axes=(("absolute", "count", "greatest", "least", "power"),),
    check=check_axes,
    canonical=_axes_from_the_front,
)
