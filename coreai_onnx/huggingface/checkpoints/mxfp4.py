"""The format MXFP4 of GPT-OSS: experts of 4-bit floating point numbers with a power of 2.

``…_blocks`` is uint8 ``[experts, outputs, groups, 16]``, 32 codes with the first of two in the low
bits; ``…_scales`` is uint8 ``[experts, outputs, groups]``, exponents plus 127. Open Compute
Project, "OCP Microscaling Formats (MX) Specification", version 1.0, section 5.
"""

from __future__ import annotations

from typing import Any

import torch

from coreai_onnx.composite_ops import torch_ops
from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.tensors import Checkpoint

PALETTE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The numbers E2M1 in the order of their codes."""
PROJECTIONS = ("gate_up_proj", "down_proj")
_BIAS = 127
_GROUP = 32


class PackedExperts(torch.nn.Module):
    """The experts of GPT-OSS with packed weights.

    Args:
        tensors: The checkpoint.
        path: The path of the experts in the model.
        like: The experts of transformers, whose activation is used.

    Raises:
        ModelSourceError: If a tensor is missing or has another shape.
    """

    palette: torch.Tensor

    def __init__(self, tensors: Checkpoint, path: str, like: Any) -> None:
        """Read the weights."""
        super().__init__()
        self.apply_gate = like._apply_gate  # noqa: SLF001 - the only name of the activation
        self.register_buffer("palette", torch.tensor(PALETTE))
        for name in PROJECTIONS:
            codes = tensors[f"{path}.{name}_blocks"]
            exponents = tensors[f"{path}.{name}_scales"]
            expected = getattr(like, name).transpose(1, 2).shape
            if codes.shape[:-1] != exponents.shape or codes.flatten(2).shape[2] * 2 != expected[2]:
                raise ModelSourceError(
                    f"{path}.{name}: blocks {list(codes.shape)} and scales "
                    f"{list(exponents.shape)} are not those of a weight {list(expected)}"
                )
            self.register_buffer(f"{name}_codes", codes)
            scales = torch.ldexp(torch.ones(exponents.shape), exponents.int() - _BIAS)
            self.register_buffer(f"{name}_scales", scales)
            bias = tensors[f"{path}.{name}_bias"]
            self.register_buffer(f"{name}_bias", bias.to(getattr(like, f"{name}_bias").dtype))

    def forward(
        self,
        hidden_states: torch.Tensor,
        router_indices: torch.Tensor,
        routing_weights: torch.Tensor,
    ) -> torch.Tensor:
        """Return the weighted sum of the chosen experts; ``[tokens, hidden]``.

        Args:
            hidden_states: ``[tokens, hidden]``.
            router_indices: int64, ``[tokens, k]``.
            routing_weights: ``[tokens, k]``.
        """
        x = hidden_states[:, None, None, :]
        gate_up = self._product("gate_up_proj", x, router_indices)
        result = self._product("down_proj", self.apply_gate(gate_up), router_indices).squeeze(2)
        weighted: torch.Tensor = result * routing_weights.unsqueeze(-1)
        return weighted.sum(1).to(hidden_states.dtype)

    def _product(self, name: str, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Return ``x [tokens, 1 or k, 1, in]`` times the chosen matrices, plus their biases."""
        codes, scales, bias = (getattr(self, f"{name}_{p}") for p in ("codes", "scales", "bias"))
        product: torch.Tensor = torch_ops.gather_mm_nbits(
            x, codes, scales, chosen, None, self.palette, 4, _GROUP, 0
        )
        biased: torch.Tensor = product + bias[chosen].unsqueeze(2)
        return biased
