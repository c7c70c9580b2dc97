"""Inputs of layers that are rounded to 8 bits, as compressed-tensors describes it.

A layer computes with ``(step - zero_point) * scale`` for each input. Static scales are in the
checkpoint; dynamic ones cover the values of a tensor, of each token (a row), or of each group in a
row, when the model runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.ao.quantization.fx  # defines torch.ops.quantized_decomposed

from coreai_onnx.errors import ModelSourceError

FLOAT8 = torch.float8_e4m3fn
_LOW, _HIGH = -128, 127
_LARGEST = torch.finfo(FLOAT8).max
_STRATEGIES = {True: ("token", "tensor", "group"), False: ("tensor",)}
"""What shares a scale, of dynamic and static ones."""


@dataclass(frozen=True)
class ActivationScheme:
    """How the inputs of a layer are rounded.

    Attributes:
        dynamic: Whether scales are those of the inputs.
        strategy: What shares a scale: ``"tensor"``, ``"token"`` or ``"group"``.
        group_size: Size of a group.
        symmetric: Whether zero points are 0.
        is_float: Whether values are rounded to float8 (E4M3) instead of int8.
    """

    dynamic: bool
    strategy: str
    group_size: int
    symmetric: bool
    is_float: bool

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> ActivationScheme | None:
        """Return the scheme of ``input_activations``; None if inputs are not rounded.

        Raises:
            ModelSourceError: If the scheme is unsupported.
        """
        if not given:
            return None
        bits, kind = given.get("num_bits", 8), str(given.get("type", "int"))
        dynamic = given.get("dynamic", False)
        strategy = str(given.get("strategy") or "tensor")
        symmetric = bool(given.get("symmetric", True))
        known = isinstance(dynamic, bool) and strategy in _STRATEGIES[dynamic]
        known = known and bits == 8 and kind in {"int", "float"}
        if not known or (kind == "float" and not symmetric):
            raise ModelSourceError(
                f"inputs rounded to {kind} of {bits} bits, strategy {strategy!r}, "
                f"dynamic={dynamic!r}, symmetric={symmetric} are not supported, only 8 bits with "
                "dynamic scales per tensor, token or group, or a static one per tensor"
            )
        return cls(dynamic, strategy, int(given.get("group_size") or 0), symmetric, kind == "float")


class Rounding(torch.nn.Module):
    """Rounds the inputs of a layer.

    Args:
        scheme: How.
        scale: The static scale, one element; None for dynamic ones.
        zero_point: The static zero point, one element; None for 0.

    Raises:
        ModelSourceError: If there is no static scale, or several.
    """

    def __init__(
        self, scheme: ActivationScheme, scale: torch.Tensor | None, zero_point: torch.Tensor | None
    ) -> None:
        """Keep static scales as numbers, which become constants."""
        super().__init__()
        self.scheme = scheme
        if not scheme.dynamic and (scale is None or scale.numel() != 1):
            raise ModelSourceError("inputs with a static scale need one number in input_scale")
        self.scale = 0.0 if scale is None else float(scale)
        self.zero_point = 0 if zero_point is None else int(zero_point)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rounded values of ``[..., inputs]``, in their dtype."""
        if not self.scheme.dynamic:
            return self._static(x.float()).to(x.dtype)
        wide = x.float()
        if self.scheme.strategy == "group":
            wide = wide.unflatten(-1, (-1, self.scheme.group_size))
        steps, scale, zero = self.steps(wide)
        values = (steps if zero is None else steps - zero) * scale
        return values.reshape(x.shape).to(x.dtype)

    def _static(self, x: torch.Tensor) -> torch.Tensor:
        if self.scheme.is_float:
            steps = (x / self.scale).clamp(-_LARGEST, _LARGEST).to(FLOAT8)
            return steps.float() * self.scale
        ops, limits = torch.ops.quantized_decomposed, (_LOW, _HIGH, torch.int8)
        steps = ops.quantize_per_tensor(x, self.scale, self.zero_point, *limits)
        values: torch.Tensor = ops.dequantize_per_tensor(
            steps, self.scale, self.zero_point, *limits
        )
        return values

    def steps(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return steps, scales and zero points, all float32; dynamic ones.

        Scales are ``largest / 127.5`` of int8, ``largest / 448`` of float8, or, with zero points,
        ``(high - low) / 255``.
        """
        low, high = self._limits(x)
        if not self.scheme.symmetric:
            scale = _positive((high - low) / (_HIGH - _LOW))
            zero = torch.round(torch.clamp(_LOW - low / scale, _LOW, _HIGH))
            return torch.round(torch.clamp(x / scale + zero, _LOW, _HIGH)), scale, zero
        largest = torch.maximum(-low, high)
        if self.scheme.is_float:
            scale = _positive(largest / _LARGEST)
            return (x / scale).clamp(-_LARGEST, _LARGEST).to(FLOAT8).float(), scale, None
        scale = _positive(largest / ((_HIGH - _LOW) / 2))
        return torch.round(torch.clamp(x / scale, _LOW, _HIGH)), scale, None

    def _limits(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the smallest and the largest value that share a scale, and 0."""
        if self.scheme.strategy == "tensor":
            low, high = x.amin(), x.amax()
        else:
            low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
        return low.clamp(max=0), high.clamp(min=0)


def _positive(scale: torch.Tensor) -> torch.Tensor:
    """Return scales with a small number in place of 0."""
    return torch.where(scale == 0, torch.finfo(torch.float32).eps, scale)
