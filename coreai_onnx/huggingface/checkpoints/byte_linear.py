"""Linear layers with weights of one byte, int8 or float8, and inputs that are rounded as well."""

from __future__ import annotations

import torch
import torch.ao.quantization.fx  # defines torch.ops.quantized_decomposed

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.export.compat.torch_names import integer_product
from coreai_onnx.huggingface.checkpoints.packed_matrices import CheckpointLayer
from coreai_onnx.huggingface.checkpoints.rounded_activations import Rounding

_LIMITS = (-128, 127, torch.int8)


class IntegerLinear(CheckpointLayer):
    """A linear layer that multiplies integers.

    Static scales become ``QuantizeLinear`` and ``DequantizeLinear``, around which onnxruntime
    selects operators on integers; dynamic ones become ``MatMulInteger``.

    Args:
        weight: int8, ``[outputs, inputs]``.
        scales: One element, or one for each output.
        rounding: Rounds the inputs, with scales per tensor or token.
    """

    weight: torch.Tensor
    scales: torch.Tensor
    row_sums: torch.Tensor | None

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor, rounding: Rounding) -> None:
        """Register the parts as buffers."""
        super().__init__()
        self.rounding = rounding
        self.hold("weight", weight)
        self.hold("scales", scales.float().reshape(-1).expand(len(weight)).contiguous())
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
        rows = steps.to(torch.int8).reshape(-1, x.shape[-1])
        sums = integer_product(rows, self.weight.t()).to(torch.float32)
        sums = sums.reshape(*x.shape[:-1], len(self.weight))
        if zero is not None and self.row_sums is not None:
            sums = sums - zero * self.row_sums
        return sums * (scale * self.scales)


class Float8Linear(CheckpointLayer):
    """A linear layer with a weight in float8, which is multiplied in float32.

    Args:
        weight: float8, ``[outputs, inputs]``.
        scales: One element, one for each output ``[outputs, 1]``, or one for each block.
        rounding: Rounds the inputs; None for none.

    Raises:
        ModelSourceError: If the blocks do not divide the weight.
    """

    weight: torch.Tensor
    scales: torch.Tensor

    def __init__(
        self, weight: torch.Tensor, scales: torch.Tensor, rounding: Rounding | None
    ) -> None:
        """Register the parts as buffers."""
        super().__init__()
        rows, columns = weight.shape
        blocks = (1, 1) if scales.numel() == 1 else tuple(scales.shape)
        if len(blocks) != 2 or rows % blocks[0] or columns % blocks[1]:
            raise ModelSourceError(
                f"scales {list(scales.shape)} do not divide the weight {list(weight.shape)} into "
                "blocks"
            )
        self.rounding = rounding
        self.hold("weight", weight)
        self.hold("scales", scales.float().reshape(blocks[0], 1, blocks[1], 1))
        self.hold("bias", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x @ weight.T + bias``, ``[..., inputs]`` to ``[..., outputs]``."""
        inputs = x if self.rounding is None else self.rounding(x)
        rows, _, columns, _ = self.scales.shape
        blocks = self.weight.float().unflatten(1, (columns, -1)).unflatten(0, (rows, -1))
        weight = (blocks * self.scales).reshape(self.weight.shape)
        product = torch.nn.functional.linear(inputs.float(), weight)
        return (product if self.bias is None else product + self.bias).to(x.dtype)
