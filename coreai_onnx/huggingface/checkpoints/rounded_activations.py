"""Inputs of layers that are rounded to 8 or 4 bits, as compressed-tensors describes it.

A layer computes with ``(step - zero_point) * scale`` for each input. Static scales are in the
checkpoint; dynamic ones cover the values of a tensor, of each token (a row), or of each group in a
row, when the model runs. NVFP4 rounds dynamic scales of groups to float8, as multiples of a static
scale of the tensor; those of MXFP8 and MXFP4 are powers of 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.ao.quantization.fx  # defines torch.ops.quantized_decomposed

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.settings import check_settings
from coreai_onnx.model.weight_formats import FORMATS

FLOAT8 = torch.float8_e4m3fn
_LARGEST = {8: torch.finfo(FLOAT8).max, 4: 6.0}
"""The largest number of each floating-point format."""
_MX_GROUP = FORMATS["mxfp4"].group_size
_STRATEGIES = {True: ("token", "tensor", "group"), False: ("tensor",), "local": ("tensor_group",)}
"""What shares a scale, of dynamic and static ones, and of dynamic ones in parts of a static one."""
_KNOWN = frozenset(
    "num_bits type symmetric strategy group_size dynamic observer observer_kwargs zp_dtype".split()
)


@dataclass(frozen=True)
class ActivationScheme:
    """How the inputs of a layer are rounded.

    Attributes:
        dynamic: Whether scales are those of the inputs.
        strategy: What shares a scale: ``"tensor"``, ``"token"``, ``"group"`` or ``"tensor_group"``.
        group_size: Size of a group.
        symmetric: Whether zero points are 0.
        is_float: Whether values are rounded to floating-point numbers instead of integers.
        bits: Their size.
        powers: Whether scales are powers of 2, as in MXFP8 and MXFP4.
    """

    dynamic: bool
    strategy: str
    group_size: int
    symmetric: bool
    is_float: bool
    bits: int = 8
    powers: bool = False

    @classmethod
    def of(cls, settings: Mapping[str, Any] | None) -> ActivationScheme | None:
        """Return the scheme of ``input_activations``; None if inputs are not rounded.

        Raises:
            ModelSourceError: If the scheme is unsupported.
        """
        if not settings:
            return None
        bits, kind = settings.get("num_bits", 8), str(settings.get("type", "int"))
        dynamic = settings.get("dynamic", False)
        strategy = str(settings.get("strategy") or "tensor")
        symmetric = bool(settings.get("symmetric", True))
        supported = dynamic in (True, False, "local") and strategy in _STRATEGIES[dynamic]
        size = int(settings.get("group_size") or 0)
        # Exponents in uint8 for groups of 32 are what compressed-tensors takes for MX formats.
        exponents = settings.get("scale_dtype") == "torch.uint8" and size == _MX_GROUP
        powers = exponents and kind == "float" and strategy == "group"
        formats = [("int", 8), ("int", 4), ("float", 8)]
        # Parts of a static scale are those of NVFP4.
        formats = [("float", 4)] if dynamic == "local" else [*formats, *[("float", 4)] * powers]
        if (
            not supported
            or (kind, bits) not in formats
            or (kind == "float" and not symmetric)
            or ((kind, bits) == ("int", 4) and not dynamic)
        ):
            raise ModelSourceError(
                f"inputs rounded to {kind} of {bits} bits, strategy {strategy!r}, "
                f"dynamic={dynamic!r}, symmetric={symmetric} are not supported, only 8 bits, "
                "integers of 4 bits, MXFP4 and NVFP4 with dynamic scales per tensor, token or "
                "group, or 8 bits with a static scale per tensor"
            )
        exact = _KNOWN | ({"scale_dtype"} if dynamic == "local" or powers else set())
        check_settings("input_activations", settings, exact)
        return cls(bool(dynamic), strategy, size, symmetric, kind == "float", bits, powers)


class Rounding(torch.nn.Module):
    """Rounds the inputs of a layer.

    Args:
        scheme: How.
        scale: The static scale, one element; None for dynamic ones.
        zero_point: The static zero point, one element; None for 0.
        total: The static scale, one element, by which dynamic ones of NVFP4 are divided.

    Raises:
        ModelSourceError: If there is no static scale, or several.
    """

    def __init__(
        self,
        scheme: ActivationScheme,
        scale: torch.Tensor | None,
        zero_point: torch.Tensor | None,
        total: torch.Tensor | None = None,
    ) -> None:
        """Keep static scales as numbers, which become constants."""
        super().__init__()
        self.scheme = scheme
        if not scheme.dynamic and (scale is None or scale.numel() != 1):
            raise ModelSourceError("inputs with a static scale need one number in input_scale")
        if scheme.strategy == "tensor_group" and (total is None or total.numel() != 1):
            raise ModelSourceError("inputs in NVFP4 need one number in input_global_scale")
        self.scale = 0.0 if scale is None else float(scale)
        self.zero_point = 0 if zero_point is None else int(zero_point)
        self.total = 1.0 if total is None else float(total)
        self.low, self.high = -(1 << (scheme.bits - 1)), (1 << (scheme.bits - 1)) - 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rounded values of ``[..., inputs]``, in their dtype."""
        # Scales are float32, and float16 would round the quotient once more.
        if not self.scheme.dynamic:
            return self._static(x.float()).to(x.dtype)
        wide = x.float()
        if self.scheme.strategy in ("group", "tensor_group"):
            wide = wide.unflatten(-1, (-1, self.scheme.group_size))
        steps, scale, zero = self.steps(wide)
        values = (steps if zero is None else steps - zero) * scale
        return values.reshape(x.shape).to(x.dtype)

    def _static(self, x: torch.Tensor) -> torch.Tensor:
        if self.scheme.is_float:
            return self._floats(x / self.scale) * self.scale
        # These become QuantizeLinear and DequantizeLinear, which onnxruntime fuses with the
        # product.
        ops, limits = torch.ops.quantized_decomposed, (self.low, self.high, torch.int8)
        steps = ops.quantize_per_tensor(x, self.scale, self.zero_point, *limits)
        values: torch.Tensor = ops.dequantize_per_tensor(
            steps, self.scale, self.zero_point, *limits
        )
        return values

    def steps(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return steps, scales and zero points, all float32; dynamic ones.

        Scales are ``largest / 127.5`` of int8, ``largest / 448`` of float8, or, with zero points,
        ``(high - low) / 255``; those of MX formats are in `_power_of_two`.
        """
        low, high = self._limits(x)
        if not self.scheme.symmetric:
            scale = _positive((high - low) / (self.high - self.low))
            # A zero point is a step too, and must be one of the integers.
            zero = torch.round(torch.clamp(self.low - low / scale, self.low, self.high))
            return torch.round(torch.clamp(x / scale + zero, self.low, self.high)), scale, zero
        largest = torch.maximum(-low, high)
        if not self.scheme.is_float:
            scale = _positive(largest / ((self.high - self.low) / 2))
            return torch.round(torch.clamp(x / scale, self.low, self.high)), scale, None
        scale = largest / _LARGEST[self.scheme.bits]
        if self.scheme.powers:
            scale = _power_of_two(largest, _LARGEST[self.scheme.bits])
        if self.scheme.strategy == "tensor_group":
            part = (self.total * scale).clamp(max=_LARGEST[8]).to(FLOAT8).float()
            # float8 rounds small scales to 0, by which the values cannot be divided.
            part = torch.where(part == 0, torch.finfo(FLOAT8).eps, part)
            scale = part / self.total
        scale = _positive(scale)
        return self._floats(x / scale), scale, None

    def _floats(self, x: torch.Tensor) -> torch.Tensor:
        """Return values rounded to the floating-point numbers of the scheme."""
        largest = _LARGEST[self.scheme.bits]
        # Older releases of torch make numbers beyond the largest NaN, newer ones the largest.
        kept = x.clamp(-largest, largest)
        if self.scheme.bits == 8:
            return kept.to(FLOAT8).float()
        size = kept.abs()
        # E2M1 has steps of 0.5 below 2, of 1 below 4, and of 2 up to 6.
        step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
        return torch.round(kept / step) * step

    def _limits(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the smallest and the largest value that share a scale, and 0."""
        if self.scheme.strategy == "tensor":
            low, high = x.amin(), x.amax()
        else:
            low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
        # 0 must be a step, so that padding stays 0.
        return low.clamp(max=0), high.clamp(min=0)


def _positive(scale: torch.Tensor) -> torch.Tensor:
    """Return scales with a small number in place of 0."""
    return torch.where(scale == 0, torch.finfo(torch.float32).eps, scale)


def _power_of_two(largest: torch.Tensor, limit: float) -> torch.Tensor:
    """Return the scales of an MX format, which are powers of 2, as compressed-tensors does.

    Args:
        largest: The largest magnitude of each group.
        limit: The largest number of the format.
    """
    # largest = fraction * 2**exponent with a fraction from 0.5 on. One of 0.875 or more would be
    # rounded beyond the limit, whose own fraction is 0.875 (448) or less (6).
    fraction, exponent = torch.frexp(largest)
    exponent = exponent + (fraction >= 0.875).to(exponent.dtype) - math.frexp(limit)[1]
    # Exponents are stored in a byte, less 127.
    return torch.ldexp(torch.ones_like(largest), exponent.clamp(-127, 127))
