"""Linear layers with weights of one byte and inputs that are rounded to integers as well."""

from __future__ import annotations

import torch
import torch.ao.quantization.fx  # defines torch.ops.quantized_decomposed

from coreai_onnx.export.compat.torch_names import integer_product
from coreai_onnx.huggingface.checkpoints.packed_matrices import CheckpointLayer, PackedMatrix
from coreai_onnx.huggingface.checkpoints.rounded_activations import Rounding

_BITS = 8
_LIMITS = (-128, 127, torch.int8)
_STRATEGIES = ("tensor", "token")


def multiplies_integers(weight: PackedMatrix, rounding: Rounding) -> bool:
    """Whether a scale holds for a whole row of the weight and of the inputs."""
    if rounding.scheme.is_float or weight.bits != _BITS:
        return False
    # A sum of integers can be scaled afterwards only if one scale holds for all of its terms.
    plain = weight.zero_points is None and weight.palette is None and weight.order is None
    return plain and weight.scales.shape[1] == 1 and rounding.scheme.strategy in _STRATEGIES


class IntegerLinear(CheckpointLayer):
    """A linear layer that multiplies integers.

    Static scales become ``QuantizeLinear`` and ``DequantizeLinear``, around which onnxruntime
    selects operators on integers; dynamic ones become ``MatMulInteger``.

    Args:
        matrix: The weight: 8 bits, a scale for each row, no zero points.
        rounding: Rounds the inputs, with scales per tensor or token.
    """

    weight: torch.Tensor
    scales: torch.Tensor
    row_sums: torch.Tensor | None

    def __init__(self, matrix: PackedMatrix, rounding: Rounding) -> None:
        """Register the parts as buffers."""
        super().__init__()
        self.rounding = rounding
        # Packed codes are unsigned, and the products of onnxruntime take int8.
        weight = (matrix.codes.flatten(1).to(torch.int16) - (1 << (_BITS - 1))).to(torch.int8)
        self.hold("weight", weight)
        self.hold("scales", matrix.scales.float().flatten())
        # Σ (x - z) w = Σ x w - z Σ w: with the sums of the rows, the product itself needs no zero
        # points.
        zeros = rounding.scheme.dynamic and not rounding.scheme.symmetric
        self.hold("row_sums", weight.sum(1, dtype=torch.float32) if zeros else None)
        self.hold("bias", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x @ weight.T + bias``, ``[..., inputs]`` to ``[..., outputs]``."""
        if self.rounding.scheme.dynamic:
            product = self._dynamic(x)
        else:
            values = torch.ops.quantized_decomposed.dequantize_per_channel(
                self.weight, self.scales, torch.zeros_like(self.scales).long(), 0, *_LIMITS
            )
            product = torch.nn.functional.linear(self.rounding(x).float(), values)
        return (product if self.bias is None else product + self.bias).to(x.dtype)

    def _dynamic(self, x: torch.Tensor) -> torch.Tensor:
        steps, scale, zero = self.rounding.steps(x.float())
        # An integer product takes matrices.
        rows = steps.to(torch.int8).reshape(-1, x.shape[-1])
        sums = integer_product(rows, self.weight.t()).to(torch.float32)
        sums = sums.reshape(*x.shape[:-1], len(self.weight))
        if zero is not None and self.row_sums is not None:
            sums = sums - zero * self.row_sums
        return sums * (scale * self.scales)
